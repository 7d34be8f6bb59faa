// The interface before aclnn: an operator is described piece by piece and then run by name. torch_npu still falls back
// to it where aclnn has no operator. Running is refused, with the operator's name; the pieces are in nothing.cpp.
#include "fake.h"

namespace {

int refuse_operator(const char* name) {
  return fake::fail(fake::kUnsupported, std::string("the legacy operator ") + name + " is not emulated");
}

}  // namespace

CANN_API int aclopCompileAndExecute(const char* name, ...) { return refuse_operator(name); }
CANN_API int aclopCompileAndExecuteV2(const char* name, ...) { return refuse_operator(name); }
