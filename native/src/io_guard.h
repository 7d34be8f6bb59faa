// Addresses at which files are mapped, so that one which is cut does not end the process: what is no longer there reads
// as zeros, and is noted.
#pragma once

namespace tv {

class Guard {
public:
    // Guards the addresses from `begin` to before `end`, both on pages. The first guard takes over SIGBUS; of other
    // addresses it is left to whoever had it before.
    Guard(char* begin, char* end);
    ~Guard();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

    // The first address that was found to be gone; null if none was.
    const char* lost() const;

private:
    struct Range* range_;
};

}  // namespace tv
