// How often the last tokens of a sequence were not among those that can be drafted.
#pragma once

#include <bitset>
#include <cstdint>

namespace pyspec {

class MissWindow {
public:
    static constexpr int32_t size = 64;

    void clear() { *this = MissWindow(); }

    void push(bool miss) {
        bits_ = bits_ << 1 | (miss ? 1 : 0);
    }

    // Of a text that is shorter than the window, what has not come yet counts as draftable: a few rare words in a short
    // prompt say little of what will be written.
    float rate() const { return (float) std::bitset<size>(bits_).count() / (float) size; }

    // Whether too many are missing: from above max_miss on, until fewer than half of that are.
    bool missing(float max_miss) {
        if (rate() > max_miss) {
            missing_ = true;
        } else if (rate() < max_miss / 2) {
            missing_ = false;
        }
        return missing_;
    }

private:
    uint64_t bits_ = 0;
    bool missing_ = false;
};

}  // namespace pyspec
