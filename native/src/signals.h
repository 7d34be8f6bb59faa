// Signals, for threads of our own: those that the program acts on are for the threads that it made itself.
#pragma once

#include <csignal>

namespace tv {

// Threads that are started while one lives take no signal, but for what their own reading of a mapped file may raise:
// it cannot wait, and one that is blocked ends the process.
class SignalsBlocked {
public:
    SignalsBlocked() {
        sigset_t blocked;
        sigfillset(&blocked);
        sigdelset(&blocked, SIGBUS);
        pthread_sigmask(SIG_SETMASK, &blocked, &before_);
    }
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    SignalsBlocked(const SignalsBlocked&) = delete;
    SignalsBlocked& operator=(const SignalsBlocked&) = delete;

private:
    sigset_t before_;
};

}  // namespace tv
