// Start, devices, versions, limits, counters, and how a refusal is said.
#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "fake.h"

namespace fake {
namespace {

thread_local int device = 0;
thread_local std::string recent_error;

std::map<std::string, uint64_t>& counters() {
  static std::map<std::string, uint64_t> all;
  return all;
}

std::map<std::string, uint64_t>& launches() {
  static std::map<std::string, uint64_t> all;
  return all;
}

std::string json(const std::map<std::string, uint64_t>& numbers) {
  std::string text = "{";
  for (auto& [name, number] : numbers) {
    text += (text.size() > 1 ? ", \"" : "\"") + name + "\": " + std::to_string(number);
  }
  return text + "}";
}

const char* soc_name() {
  const char* name = std::getenv("FAKECANN_SOC");
  return name ? name : "Ascend910B3";
}

// AI cores of a die: cube, vector. Ascend 910B1/B2 have 24 and 48, B3 and B4 have 20 and 40.
std::array<uint32_t, 2> cores() {
  std::string soc = soc_name();
  return soc == "Ascend910B1" || soc == "Ascend910B2" ? std::array<uint32_t, 2>{24, 48}
                                                      : std::array<uint32_t, 2>{20, 40};
}

std::map<int, int64_t>& parameters() {
  static std::map<int, int64_t> all;
  return all;
}

int core_limit(int type, uint32_t* value) {
  if (type < 0 || type > 1)
    return fail(kInvalidParameter, "aclrtGet*ResLimit: type " + std::to_string(type) + " is not emulated");
  *value = cores()[type];
  return kSuccess;
}

}  // namespace

int fail(int code, const std::string& sentence) {
  recent_error = "fake CANN: " + sentence;
  std::fprintf(stderr, "%s (%d)\n", recent_error.c_str(), code);
  return code;
}

int refuse(const char* entry_point) { return fail(kUnsupported, std::string(entry_point) + " is not emulated"); }

int guarded(const std::string& entry_point, const std::function<int()>& body) {
  std::lock_guard lock(world());
  try {
    return body();
  } catch (const std::exception& error) {
    return fail(kInvalidParameter, entry_point + ": " + error.what());
  }
}

void count(const char* name, uint64_t amount) {
  std::lock_guard lock(world());
  counters()[name] += amount;
}

void count_launch(const std::string& operator_name) {
  std::lock_guard lock(world());
  ++launches()[operator_name];
}

std::recursive_mutex& world() {
  static std::recursive_mutex mutex;
  return mutex;
}

int current_device() { return device; }

int device_count() {
  static const char* text = std::getenv("FAKECANN_DEVICES");
  static const int devices = text ? std::atoi(text) : 2;
  return devices;
}

}  // namespace fake

using namespace fake;

// Ours, read by counters.py. The text stays valid until this thread asks again.
CANN_API const char* fakecann_counters() {
  std::lock_guard lock(world());
  static thread_local std::string text;
  text = "{\"counters\": " + json(counters()) + ", \"launches\": " + json(launches()) + "}";
  return text.c_str();
}

CANN_API void fakecann_reset_counters() {
  std::lock_guard lock(world());
  counters().clear();
  launches().clear();
}

CANN_API const char* aclGetRecentErrMsg() { return recent_error.c_str(); }
// level: aclLogLevel; torch_npu's own errors (3) are worth reading beside ours.
CANN_API void aclAppLog(int level, const char*, const char*, uint32_t, const char* format, ...) {
  if (level < 3) return;
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  std::fputc('\n', stderr);
  va_end(arguments);
}

CANN_API const char* aclrtGetSocName() { return soc_name(); }

CANN_API int aclrtGetDeviceCount(uint32_t* devices) {
  *devices = device_count();
  return kSuccess;
}

CANN_API int aclrtSetDevice(int32_t id) {
  if (id < 0 || id >= device_count()) {
    return fail(kInvalidDevice,
                "aclrtSetDevice: device " + std::to_string(id) + " of " + std::to_string(device_count()));
  }
  device = id;
  return kSuccess;
}

CANN_API int aclrtGetDevice(int32_t* id) {
  *id = device;
  return kSuccess;
}

// A context is its device's number plus one: never null.
CANN_API int aclrtGetCurrentContext(void** context) {
  *context = reinterpret_cast<void*>(static_cast<intptr_t>(device + 1));
  return kSuccess;
}

CANN_API int aclrtSetCurrentContext(void* context) { return aclrtSetDevice(reinterpret_cast<intptr_t>(context) - 1); }

CANN_API int aclrtGetPrimaryCtxState(int32_t, uint32_t* flags, int32_t* is_active) {
  if (flags) *flags = 0;
  if (is_active) *is_active = 1;
  return kSuccess;
}

CANN_API int aclrtDeviceCanAccessPeer(int32_t* can, int32_t, int32_t) {
  *can = 0;
  return kSuccess;
}

// attribute: aclDeviceInfo: cube cores, vector cores, bytes of L2.
CANN_API int aclGetDeviceCapability(uint32_t, int attribute, int64_t* value) {
  const int64_t known[] = {cores()[0], cores()[1], 192 << 20};
  if (attribute < 0 || attribute > 2) {
    return fail(kUnsupported, "aclGetDeviceCapability: attribute " + std::to_string(attribute) + " is not emulated");
  }
  *value = known[attribute];
  return kSuccess;
}

CANN_API int aclrtGetDeviceResLimit(int32_t, int type, uint32_t* value) { return core_limit(type, value); }
CANN_API int aclrtGetStreamResLimit(void*, int type, uint32_t* value) { return core_limit(type, value); }

// option: aclSysParamOpt. All three ask for determinism or its price, and the fake is never anything else.
CANN_API int aclrtSetSysParamOpt(int option, int64_t value) {
  std::lock_guard lock(world());
  if (option < 0 || option > 2)
    return fail(kUnsupported, "aclrtSetSysParamOpt: option " + std::to_string(option) + " is not emulated");
  parameters()[option] = value;
  return kSuccess;
}

CANN_API int aclrtCtxSetSysParamOpt(int option, int64_t value) { return aclrtSetSysParamOpt(option, value); }

CANN_API int aclrtGetSysParamOpt(int option, int64_t* value) {
  std::lock_guard lock(world());
  *value = parameters()[option];
  return kSuccess;
}

// What overflows is infinite here, as on the CPU; a device may also clamp it, which is mode 0.
CANN_API int aclrtSetDeviceSatMode(int mode) {
  return mode == 1 ? kSuccess : fail(kUnsupported, "aclrtSetDeviceSatMode: saturation is not emulated");
}

struct PackageVersion {  // aclCANNPackageVersion
  char version[128], major[64], minor[64], release[64], patch[64], reserved[128];
};

// The version that the wheels of torch_npu's release 26.1 are published for.
CANN_API int aclsysGetCANNVersion(int, PackageVersion* version) {
  *version = {};
  std::strcpy(version->version, "9.1.0");
  std::strcpy(version->major, "9");
  std::strcpy(version->minor, "1");
  std::strcpy(version->release, "0");
  return kSuccess;
}
