// Run a stream of one frame per call in OpenVINO.
//
//     rnn-lower examples/denoiser_forward.onnx step.onnx --stream time=1 --set-dim batch=1 --target openvino
//     denoise_openvino step.onnx magnitude.f32 mask.f32
//
// The input file holds frames of float32; each frame of the output is appended to the output file.

#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iostream>
#include <openvino/openvino.hpp>
#include <string>
#include <utility>
#include <vector>

struct State {
  ov::Tensor past, present;
};

// A stream calls its states past_NAME and present_NAME. Their first values are zeros, unless the metadata
// "rnn_lowering.stream" says otherwise.
std::vector<State> states_of(ov::InferRequest& request) {
  std::vector<State> states;
  for (const auto& input : request.get_compiled_model().inputs()) {
    const auto name = input.get_any_name();
    if (name.rfind("past_", 0) != 0) continue;
    states.push_back({request.get_tensor(name), request.get_tensor("present_" + name.substr(5))});
    std::memset(states.back().past.data(), 0, states.back().past.get_byte_size());
  }
  return states;
}

// Run one frame; the states that it returns are those of the next call.
void run_frame(ov::InferRequest& request, std::vector<State>& states) {
  request.infer();
  for (auto& state : states) state.present.copy_to(state.past);
}

int main(int count, char** arguments) try {
  if (count != 4) throw std::invalid_argument("usage: denoise_openvino STEP.onnx FRAMES.f32 RESULT.f32");
  ov::Core core;
  auto model = core.compile_model(arguments[1], "CPU", ov::hint::inference_precision(ov::element::f32),
                                  ov::inference_num_threads(1));
  auto request = model.create_infer_request();
  auto states = states_of(request);
  auto frame = request.get_input_tensor(0), result = request.get_output_tensor(0);

  std::ifstream in(arguments[2], std::ios::binary);
  std::ofstream out(arguments[3], std::ios::binary);
  if (!in || !out) throw std::runtime_error("cannot open the files of frames");
  int frames = 0;
  const auto start = std::chrono::steady_clock::now();
  for (; in.read(static_cast<char*>(frame.data()), frame.get_byte_size()); ++frames) {
    run_frame(request, states);
    out.write(static_cast<const char*>(result.data()), result.get_byte_size());
  }
  const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
  std::cout << frames << " frames, " << states.size() << " states, " << std::lround(time.count() / frames)
            << " microseconds per frame\n";
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
