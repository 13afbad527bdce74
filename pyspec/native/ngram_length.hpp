// How long a draft of some origin should be, by how its drafts went.
#pragma once

#include <algorithm>
#include <cstdint>

namespace pyspec {

// Between 1 and a longest length, where it starts. Where a draft went wrong is where the next one ends; one that was
// right to its end doubles what is tried next.
class DraftLength {
public:
    explicit DraftLength(int32_t longest) : value_(longest) {}

    int32_t value() const { return value_; }

    void learn(int32_t submitted, int32_t accepted, int32_t longest) {
        if (accepted >= submitted) {
            value_ = std::min(longest, std::max(value_, 2 * submitted));
        } else {
            value_ = std::max(1, accepted);
        }
    }

private:
    int32_t value_;
};

}  // namespace pyspec
