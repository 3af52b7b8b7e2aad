# docker build -t rnn-lower . && docker run --rm -u $(id -u) -v "$PWD:/models" rnn-lower model.onnx lowered.onnx
FROM python:3.13-slim
COPY . /source
RUN pip install --no-cache-dir "/source[html]" && rm -rf /source
WORKDIR /models
ENTRYPOINT ["rnn-lower"]
