// Hidden states of a target for one sequence: a row for each position of a piece of its committed tokens, the last of
// which a draft has not taken in yet.
//
// Rows come in behind the last one, in the order of the text, and leave at the front when no memory needs them any more.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace pyspec {

class HiddenRows {
public:
    void set_width(int32_t width) {
        width_ = (size_t) width;
        clear();
    }

    void clear() {
        known_ = false;
        first_ = 0;
        data_.clear();
    }

    // Whether it knows where in the text it is.
    bool known() const { return known_; }

    // The position of the first row, and the one behind the last.
    int32_t first() const { return first_; }
    int32_t end() const { return first_ + (int32_t) (data_.size() / width_); }
    int32_t size() const { return end() - first_; }

    bool has(int32_t position) const { return known_ && position >= first_ && position < end(); }
    const float * row(int32_t position) const { return data_.data() + (size_t) (position - first_) * width_; }

    // Room for the row of a position; what is not right before it is forgotten.
    float * add(int32_t position) {
        if (!known_ || position != end()) {
            data_.clear();
            known_ = true;
            first_ = position;
        }
        data_.resize(data_.size() + width_);
        return data_.data() + data_.size() - width_;
    }

    // Keeps the rows from a position on.
    void drop_before(int32_t position) {
        const int32_t n = std::min(position, end()) - first_;
        if (known_ && n > 0) {
            data_.erase(data_.begin(), data_.begin() + (ptrdiff_t) ((size_t) n * width_));
            first_ += n;
        }
    }

    // Keeps the rows before a position; where the one right before it is not there, the next one starts anew.
    void truncate(int32_t position) {
        if (!known_ || position <= first_ || position > end()) {
            if (position != end()) {
                clear();
            }
            return;
        }
        data_.resize((size_t) (position - first_) * width_);
    }

    // Positions move by an offset.
    void move(int32_t offset) { first_ += offset; }

    size_t width() const { return width_; }
    const float * data() const { return data_.data(); }

private:
    size_t width_ = 1;
    bool known_ = false;
    int32_t first_ = 0;
    std::vector<float> data_;
};

}  // namespace pyspec
