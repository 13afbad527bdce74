// How often the last tokens of a sequence were not among those that can be drafted.
#pragma once

#include <algorithm>
#include <bitset>
#include <cstdint>

namespace pyspec {

class MissWindow {
public:
    static constexpr int32_t size = 64;
    static constexpr int32_t enough = 16;  // tokens, before anything is said

    void clear() { *this = MissWindow(); }

    void push(bool miss) {
        bits_ = bits_ << 1 | (miss ? 1 : 0);
        n_ = std::min(n_ + 1, size);
    }

    float rate() const { return n_ == 0 ? 0.0f : (float) std::bitset<size>(bits_).count() / (float) n_; }

    // Whether too many are missing: from above max_miss on, until fewer than half of that are.
    bool missing(float max_miss) {
        if (n_ >= enough && rate() > max_miss) {
            missing_ = true;
        } else if (rate() < max_miss / 2) {
            missing_ = false;
        }
        return missing_;
    }

private:
    uint64_t bits_ = 0;
    int32_t n_ = 0;
    bool missing_ = false;
};

}  // namespace pyspec
