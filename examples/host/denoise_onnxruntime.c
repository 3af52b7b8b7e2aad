/* Run a stream of one frame per call with the C API of onnxruntime.
 *
 *     rnn-lower examples/denoiser_forward.onnx step.onnx --stream time=1 --set-dim batch=1
 *     denoise_onnxruntime step.onnx magnitude.f32 mask.f32
 *
 * The input file holds frames of float32; each frame of the output is appended to the output file.
 * The first input is the frame, the first output the result; the others are states. */

#include <onnxruntime_c_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST = 64 }; /* inputs or outputs */

static const OrtApi* ort;
static OrtAllocator* allocator;

static void require(int holds, const char* otherwise) {
  if (holds) return;
  fprintf(stderr, "%s\n", otherwise);
  exit(1);
}

static void check(OrtStatus* status) { require(status == NULL, status ? ort->GetErrorMessage(status) : ""); }

typedef struct {
  OrtSession* session;
  size_t count;
  char *inputs[MOST], *outputs[MOST]; /* outputs[i] is the next value of inputs[i]; outputs[0] the result */
  OrtValue *given[MOST], *returned[MOST];
} Stream;

/* Run one frame, given[0]; the states that it returns are those of the next call. */
static void run_frame(Stream* s) {
  check(ort->Run(s->session, NULL, (const char* const*)s->inputs, (const OrtValue* const*)s->given, s->count,
                 (const char* const*)s->outputs, s->count, s->returned));
  for (size_t i = 1; i < s->count; i++) {
    ort->ReleaseValue(s->given[i]);
    s->given[i] = s->returned[i];
    s->returned[i] = NULL;
  }
}

/* Return zeros of the shape of an input. The first values of states are zeros, unless the metadata
 * "rnn_lowering.stream" says otherwise. */
static OrtValue* zeros(const OrtSession* session, size_t input) {
  OrtTypeInfo* type;
  const OrtTensorTypeAndShapeInfo* tensor;
  ONNXTensorElementDataType element;
  size_t rank, bytes;
  int64_t shape[8];
  OrtValue* value;
  void* data;
  check(ort->SessionGetInputTypeInfo(session, input, &type));
  check(ort->CastTypeInfoToTensorInfo(type, &tensor));
  check(ort->GetTensorElementType(tensor, &element));
  check(ort->GetDimensionsCount(tensor, &rank));
  require(rank <= 8 && element == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, "an input has another type than float32");
  check(ort->GetDimensions(tensor, shape, rank));
  ort->ReleaseTypeInfo(type);
  bytes = sizeof(float);
  for (size_t i = 0; i < rank; i++) {
    require(shape[i] > 0, "an input has an open size: fix it with --set-dim");
    bytes *= (size_t)shape[i];
  }
  check(ort->CreateTensorAsOrtValue(allocator, shape, rank, element, &value));
  check(ort->GetTensorMutableData(value, &data));
  memset(data, 0, bytes);
  return value;
}

/* Pair past_NAME with present_NAME: a stream calls its states so. */
static Stream open_stream(OrtSession* session) {
  Stream s = {.session = session};
  check(ort->SessionGetInputCount(session, &s.count));
  require(s.count > 0 && s.count <= MOST, "the model has no inputs, or too many");
  for (size_t i = 0; i < s.count; i++) {
    check(ort->SessionGetInputName(session, i, allocator, &s.inputs[i]));
    s.given[i] = zeros(session, i);
    if (i == 0) {
      check(ort->SessionGetOutputName(session, 0, allocator, &s.outputs[0]));
      continue;
    }
    require(strncmp(s.inputs[i], "past_", 5) == 0, "only the first input can be a frame");
    s.outputs[i] = malloc(strlen(s.inputs[i]) + 4); /* "present_" has 3 letters more */
    require(s.outputs[i] != NULL, "no memory");
    sprintf(s.outputs[i], "present_%s", s.inputs[i] + 5);
  }
  return s;
}

static size_t bytes_of(const OrtValue* value) {
  OrtTensorTypeAndShapeInfo* shape;
  size_t numbers;
  check(ort->GetTensorTypeAndShape(value, &shape));
  check(ort->GetTensorShapeElementCount(shape, &numbers));
  ort->ReleaseTensorTypeAndShapeInfo(shape);
  return numbers * sizeof(float);
}

int main(int count, char** arguments) {
  require(count == 4, "usage: denoise_onnxruntime STEP.onnx FRAMES.f32 RESULT.f32");
  ort = OrtGetApiBase()->GetApi(ORT_API_VERSION);
  require(ort != NULL, "the library is older than its header");
  OrtEnv* environment;
  OrtSessionOptions* options;
  OrtSession* session;
  check(ort->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "denoise", &environment));
  check(ort->CreateSessionOptions(&options));
  check(ort->SetIntraOpNumThreads(options, 1)); /* a frame is too little for more */
  check(ort->CreateSession(environment, arguments[1], options, &session));
  check(ort->GetAllocatorWithDefaultOptions(&allocator));

  Stream s = open_stream(session);
  FILE *in = fopen(arguments[2], "rb"), *out = fopen(arguments[3], "wb");
  require(in && out, "cannot open the files of frames");
  void *frame, *result;
  check(ort->GetTensorMutableData(s.given[0], &frame));
  int frames = 0;
  const clock_t start = clock();
  for (; fread(frame, bytes_of(s.given[0]), 1, in) == 1; frames++) {
    run_frame(&s);
    check(ort->GetTensorMutableData(s.returned[0], &result));
    require(fwrite(result, bytes_of(s.returned[0]), 1, out) == 1, "cannot write");
    ort->ReleaseValue(s.returned[0]);
    s.returned[0] = NULL;
  }
  require(fclose(out) == 0, "cannot write");
  const double microseconds = 1e6 * (double)(clock() - start) / CLOCKS_PER_SEC;
  printf("%d frames, %zu states, %.0f microseconds per frame\n", frames, s.count - 1, microseconds / frames);
  return 0;
}
