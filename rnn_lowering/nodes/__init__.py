"""What a recurrent node specifies: its attributes, inputs, outputs and sizes. Knows onnx, nothing of emission."""
