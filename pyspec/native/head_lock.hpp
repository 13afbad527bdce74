// Who may build graphs of a model while its output head is exchanged: nobody else.
//
// A draft vocabulary puts another tensor in the place of the model's output head for the time of a decode of the draft's
// context. A graph that somebody else built of the same model meanwhile would silently use it, so every decode holds
// this lock: shared, but for the decode that exchanges the head. Never wait for it with the GIL held.
#pragma once

#include <shared_mutex>

namespace pyspec {

class HeadLock {
public:
    std::shared_mutex & mutex() noexcept { return mutex_; }

private:
    std::shared_mutex mutex_;
};

}  // namespace pyspec
