// Which token each row of a reduced output head stands for.
//
// The first rows are fixed. The others are slots: they begin with tokens of their own (their defaults), and take the
// tokens that sequences turn out to use and that no row stands for; the slot whose token was longest not seen goes
// first. When a sequence is over, what only it has seen goes as well, and the default comes back. No token is ever in
// two rows. This is bookkeeping only: `dirty` says which rows have to be written.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace pyspec {

class VocabSlots {
public:
    VocabSlots() = default;

    // ids: of all rows, each once and below n_vocab; the last n_slots of them are defaults.
    VocabSlots(std::vector<int32_t> ids, int32_t n_slots, int32_t n_vocab, int32_t n_seq)
        : n_fixed_((int32_t) ids.size() - n_slots),
          ids_(std::move(ids)),
          row_of_(n_vocab, -1),
          defaults_(ids_.begin() + n_fixed_, ids_.end()),
          n_words_((n_seq + 63) / 64),
          owners_((size_t) n_slots * n_words_, 0),
          newer_(n_slots + 1),
          older_(n_slots + 1),
          is_dirty_(n_slots, 0) {
        for (int32_t row = 0; row < n_rows(); ++row) {
            row_of_[ids_[row]] = row;
        }
        for (int32_t i = 0; i <= n_slots; ++i) {  // a ring; node n_slots is between the oldest and the newest
            newer_[i] = i == 0 ? n_slots : i - 1;
            older_[i] = i == n_slots ? 0 : i + 1;
        }
    }

    int32_t n_rows() const { return (int32_t) ids_.size(); }
    int32_t n_fixed() const { return n_fixed_; }
    int32_t n_slots() const { return n_rows() - n_fixed_; }
    int32_t id_of(int32_t row) const { return ids_[row]; }
    int32_t row_of(int32_t id) const { return row_of_[id]; }  // -1: none

    // Slots taken by tokens that sequences have seen.
    int32_t n_taken() const { return n_taken_; }

    // A sequence has this token. Returns whether a row stood for it before.
    bool see(int32_t seq, int32_t id) {
        if (id < 0 || id >= (int32_t) row_of_.size()) {
            return false;
        }
        const int32_t row = row_of_[id];
        if (row >= 0 && row < n_fixed_) {
            return true;
        }
        if (n_slots() == 0) {
            return false;
        }
        const int32_t slot = row >= 0 ? row - n_fixed_ : newer_[n_slots()];
        if (row < 0) {
            if (owned(slot)) {
                disown(slot);
            }
            write(slot, id);
        }
        if (!owned(slot)) {
            ++n_taken_;
        }
        owners_[(size_t) slot * n_words_ + seq / 64] |= uint64_t(1) << (seq % 64);
        unlink(slot);
        link_newest(slot);
        return row >= 0;
    }

    // Nothing a sequence has seen shall stay that no other has.
    void leave(int32_t seq) {
        for (int32_t slot = 0; slot < n_slots(); ++slot) {
            uint64_t & word = owners_[(size_t) slot * n_words_ + seq / 64];
            const uint64_t bit = uint64_t(1) << (seq % 64);
            if (!(word & bit)) {
                continue;
            }
            word &= ~bit;
            if (!owned(slot)) {
                --n_taken_;
                put_default_back(slot);
                unlink(slot);
                link_oldest(slot);
            }
        }
    }

    // Rows whose token has changed since the last call.
    void take_dirty(std::vector<int32_t> & rows) {
        rows.clear();
        for (const int32_t slot : dirty_) {
            is_dirty_[slot] = 0;
            rows.push_back(n_fixed_ + slot);
        }
        dirty_.clear();
    }

private:
    int32_t n_fixed_ = 0;
    int32_t n_taken_ = 0;
    std::vector<int32_t> ids_;       // by row
    std::vector<int32_t> row_of_;    // by id; -1: none
    std::vector<int32_t> defaults_;  // by slot
    int32_t n_words_ = 0;
    std::vector<uint64_t> owners_;   // by slot: a bit per sequence
    std::vector<int32_t> newer_;     // by slot: the next more recently seen
    std::vector<int32_t> older_;
    std::vector<int32_t> dirty_;
    std::vector<char> is_dirty_;

    bool owned(int32_t slot) const {
        for (int32_t w = 0; w < n_words_; ++w) {
            if (owners_[(size_t) slot * n_words_ + w]) {
                return true;
            }
        }
        return false;
    }

    void disown(int32_t slot) {
        for (int32_t w = 0; w < n_words_; ++w) {
            owners_[(size_t) slot * n_words_ + w] = 0;
        }
        --n_taken_;
    }

    void write(int32_t slot, int32_t id) {
        row_of_[ids_[n_fixed_ + slot]] = -1;
        ids_[n_fixed_ + slot] = id;
        row_of_[id] = n_fixed_ + slot;
        if (!is_dirty_[slot]) {
            is_dirty_[slot] = 1;
            dirty_.push_back(slot);
        }
    }

    // Where another slot stands for the default already, the two exchange their defaults.
    void put_default_back(int32_t slot) {
        while (true) {
            const int32_t row = row_of_[defaults_[slot]];
            if (row < 0) {
                write(slot, defaults_[slot]);
                return;
            }
            if (row == n_fixed_ + slot) {
                return;
            }
            std::swap(defaults_[slot], defaults_[row - n_fixed_]);
        }
    }

    void unlink(int32_t slot) {
        newer_[older_[slot]] = newer_[slot];
        older_[newer_[slot]] = older_[slot];
    }

    void link_newest(int32_t slot) { link(slot, n_slots(), older_[n_slots()]); }
    void link_oldest(int32_t slot) { link(slot, newer_[n_slots()], n_slots()); }

    // Between two neighbours, of which `before` is newer.
    void link(int32_t slot, int32_t before, int32_t after) {
        newer_[slot] = before;
        older_[slot] = after;
        older_[before] = slot;
        newer_[after] = slot;
    }
};

}  // namespace pyspec
