/* A library of custom operators for tests: my.ops::Fancy(x) = alpha * tanh(x), float32, on the CPU.

   onnxruntime's headers are not needed: its C interface is a table of functions whose order never changes, and what is
   called here stands at the places named below (those of version 1). */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

typedef void *Any;
typedef Any (*Call1)(Any, Any);
typedef Any (*GetInput)(Any context, size_t index, Any *value);
typedef Any (*GetOutput)(Any context, size_t index, const int64_t *dims, size_t rank, Any *value);
typedef Any (*GetCount)(Any info, size_t *count);
typedef Any (*GetDims)(Any info, int64_t *dims, size_t count);
typedef void (*Release)(Any);

enum {
  CREATE_DOMAIN = 26, ADD_TO_DOMAIN = 27, ADD_DOMAIN = 28, TENSOR_DATA = 51, RANK = 61, DIMENSIONS = 62, ELEMENTS = 64,
  TYPE_AND_SHAPE = 65, ATTRIBUTE_FLOAT = 85, CONTEXT_INPUT = 90, CONTEXT_OUTPUT = 91, RELEASE_TYPE_AND_SHAPE = 99
};

struct base { Any *(*api)(uint32_t version); const char *(*version)(void); };

struct op {
  uint32_t version;
  Any (*create)(const struct op *, Any *api, Any info);
  const char *(*name)(const struct op *);
  const char *(*provider)(const struct op *);
  int (*input_type)(const struct op *, size_t);
  size_t (*inputs)(const struct op *);
  int (*output_type)(const struct op *, size_t);
  size_t (*outputs)(const struct op *);
  void (*compute)(Any kernel, Any context);
  void (*destroy)(Any kernel);
  int (*input_kind)(const struct op *, size_t);
  int (*output_kind)(const struct op *, size_t);
};

struct kernel { Any *api; float alpha; };

static Any create(const struct op *op, Any *api, Any info) {
  struct kernel *kernel = malloc(sizeof *kernel);
  kernel->api = api;
  kernel->alpha = 1.0f;
  ((Any (*)(Any, const char *, float *))api[ATTRIBUTE_FLOAT])(info, "alpha", &kernel->alpha);
  return kernel;
}

static void compute(Any of, Any context) {
  struct kernel *kernel = of;
  Any *api = kernel->api, x, y, info;
  float *from, *to;
  int64_t dims[8];
  size_t rank, elements;
  ((GetInput)api[CONTEXT_INPUT])(context, 0, &x);
  ((Call1)api[TYPE_AND_SHAPE])(x, &info);
  ((GetCount)api[RANK])(info, &rank);
  ((GetDims)api[DIMENSIONS])(info, dims, rank);
  ((GetCount)api[ELEMENTS])(info, &elements);
  ((Release)api[RELEASE_TYPE_AND_SHAPE])(info);
  ((GetOutput)api[CONTEXT_OUTPUT])(context, 0, dims, rank, &y);
  ((Call1)api[TENSOR_DATA])(x, (Any)&from);
  ((Call1)api[TENSOR_DATA])(y, (Any)&to);
  for (size_t i = 0; i < elements; ++i) to[i] = kernel->alpha * tanhf(from[i]);
}

static const char *name(const struct op *op) { return "Fancy"; }
static const char *provider(const struct op *op) { return NULL; }
static int float32(const struct op *op, size_t index) { return 1; }
static size_t one(const struct op *op) { return 1; }
static int required(const struct op *op, size_t index) { return 0; }

static const struct op fancy = {8,   create,  name, provider, float32,  one,
                                float32, one, compute, free, required, required};

Any RegisterCustomOps(Any options, const struct base *base) {
  Any *api = base->api(8), domain, status;
  if ((status = ((Call1)api[CREATE_DOMAIN])((Any) "my.ops", &domain))) return status;
  if ((status = ((Call1)api[ADD_TO_DOMAIN])(domain, (Any)&fancy))) return status;
  return ((Call1)api[ADD_DOMAIN])(options, domain);
}
