// Entry points that succeed without doing anything. Each says why that is no lie; no other file has any.
#include "fake.h"

using fake::kSuccess;

namespace {

void* described() {
  static char piece;
  return &piece;
}

}  // namespace

// There is no driver to start or stop: memory and streams come into being when they are first used.
CANN_API int aclInit(const char*) { return kSuccess; }
CANN_API int aclFinalize() { return kSuccess; }
// Called once, as the process ends; what it would free, the process frees.
CANN_API int aclrtResetDevice(int32_t) { return kSuccess; }
// A limit on a device that hangs, which this one cannot.
CANN_API int aclrtSetOpExecuteTimeOut(uint32_t) { return kSuccess; }
// Set beside every launch to say whether collectives are deterministic; there are none here, and each of them is
// refused.
CANN_API int HcclSetConfig(int, int64_t) { return kSuccess; }
// Set around a capture so that the shapes of captured operators can be reported; nothing reports them here.
CANN_API int aclrtSetStreamAttribute(void*, int, void*) { return kSuccess; }

// The pieces that describe a legacy operator: taken and forgotten, for running one is refused by its name (legacy.cpp).
CANN_API int aclSetCompileopt(int, const char*) { return kSuccess; }
CANN_API void* aclCreateTensorDesc(int, int, const int64_t*, int) { return described(); }
CANN_API void aclDestroyTensorDesc(const void*) {}
// torch_npu asks for these when it reports the refusal: a piece has no axes, and neither type nor format.
CANN_API size_t aclGetTensorDescNumDims(const void*) { return 0; }
CANN_API int aclGetTensorDescType(const void*) { return -1; }    // ACL_DT_UNDEFINED
CANN_API int aclGetTensorDescFormat(const void*) { return -1; }  // ACL_FORMAT_UNDEFINED
CANN_API int aclSetTensorFormat(void*, int) { return kSuccess; }
CANN_API int aclSetTensorShape(void*, int, const int64_t*) { return kSuccess; }
CANN_API void aclSetTensorDescName(void*, const char*) {}
CANN_API int aclSetTensorPlaceMent(void*, int) { return kSuccess; }
CANN_API void* aclCreateDataBuffer(void*, size_t) { return described(); }
CANN_API int aclDestroyDataBuffer(const void*) { return kSuccess; }
CANN_API void* aclopCreateAttr() { return described(); }
CANN_API void aclopDestroyAttr(const void*) {}
CANN_API int aclopSetAttrBool(void*, const char*, uint8_t) { return kSuccess; }
CANN_API int aclopSetAttrInt(void*, const char*, int64_t) { return kSuccess; }
CANN_API int aclopSetAttrFloat(void*, const char*, float) { return kSuccess; }
CANN_API int aclopSetAttrString(void*, const char*, const char*) { return kSuccess; }
CANN_API int aclopSetAttrDataType(void*, const char*, int) { return kSuccess; }
CANN_API int aclopSetAttrListInt(void*, const char*, int, const int64_t*) { return kSuccess; }
CANN_API int aclopSetAttrListFloat(void*, const char*, int, const float*) { return kSuccess; }
CANN_API int aclopSetAttrListBool(void*, const char*, int, const uint8_t*) { return kSuccess; }
CANN_API int aclopSetAttrListListInt(void*, const char*, int, const int*, const int64_t* const*) { return kSuccess; }
