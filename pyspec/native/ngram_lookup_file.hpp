// llama.cpp's lookup caches as bytes: records, one after the other, of little-endian 32-bit integers
//   n-gram: four tokens, those it does not have are -1;  n;  n times a token and how often it followed
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "ngram_counts.hpp"

namespace pyspec {

class LookupReader {
public:
    // Ids from n_vocab on are damage.
    LookupReader(const unsigned char * data, size_t size, int32_t n_vocab) : data_(data), size_(size), n_vocab_(n_vocab) {}

    // Adds everything to `counts`. Returns what is wrong, at `offset`; nothing if all is well.
    std::string read(NgramCounts & counts) {
        while (offset < size_) {
            const std::string error = read_record(counts);
            if (!error.empty()) {
                return error;
            }
        }
        return "";
    }

    size_t offset = 0;

private:
    static constexpr size_t header_size = (ngram_order_max + 1) * 4;
    static constexpr size_t pair_size = 8;

    int32_t integer(size_t at) const {
        return (int32_t) ((uint32_t) data_[at] | (uint32_t) data_[at + 1] << 8 | (uint32_t) data_[at + 2] << 16 |
                          (uint32_t) data_[at + 3] << 24);
    }

    bool is_token(int32_t id) const { return id >= 0 && id < n_vocab_; }

    std::string outside(int32_t id) const {
        return "token " + std::to_string(id) + " is not in the vocabulary of " + std::to_string(n_vocab_);
    }

    std::string read_record(NgramCounts & counts) {
        if (size_ - offset < header_size) {
            return "it ends within an n-gram (" + std::to_string(size_ - offset) + " bytes are left)";
        }
        Ngram ngram;
        for (int32_t i = 0; i < ngram_order_max; ++i) {
            ngram[i] = integer(offset);
            const bool padding = i > 0 && ngram[i] == -1;
            if (!padding && !is_token(ngram[i])) {
                return outside(ngram[i]);
            }
            if (i > 0 && ngram[i - 1] == -1 && !padding) {
                return "token " + std::to_string(ngram[i]) + " follows the end of an n-gram";
            }
            offset += 4;
        }
        if (counts.find(ngram) != nullptr) {
            offset -= 4 * ngram_order_max;
            return "the n-gram is there twice";
        }
        const int32_t n = integer(offset);
        if (n <= 0) {
            return "an n-gram with " + std::to_string(n) + " successors";
        }
        if ((size_t) n > (size_ - offset - 4) / pair_size) {
            return std::to_string(n) + " successors do not fit into the " + std::to_string(size_ - offset - 4) +
                   " bytes that are left";
        }
        offset += 4;
        for (int32_t i = 0; i < n; ++i) {
            const Token token = integer(offset);
            if (!is_token(token)) {
                return outside(token);
            }
            const int32_t count = integer(offset + 4);
            if (count <= 0) {
                offset += 4;
                return "a count of " + std::to_string(count);
            }
            if (counts.add(ngram, token, count)) {
                return "token " + std::to_string(token) + " is there twice";
            }
            offset += pair_size;
        }
        return "";
    }

    const unsigned char * data_;
    size_t size_;
    int32_t n_vocab_;
};

// The most frequent successor comes last, so that reading finds the same one among equals.
inline std::string lookup_bytes(const NgramCounts & counts) {
    std::string bytes;
    const auto put = [&](int32_t value) {
        for (int shift = 0; shift < 32; shift += 8) {
            bytes.push_back((char) ((uint32_t) value >> shift & 0xff));
        }
    };
    for (const NgramCounts::Entry & entry : counts.entries()) {
        for (const Token token : entry.ngram) {
            put(token);
        }
        int32_t n = 0;
        for (int32_t i = entry.newest; i >= 0; i = counts.successor(i).next) {
            ++n;
        }
        put(n);
        for (int32_t i = entry.newest; i >= 0; i = counts.successor(i).next) {
            if (counts.successor(i).token != entry.best) {
                put(counts.successor(i).token);
                put(counts.successor(i).count);
            }
        }
        put(entry.best);
        put(entry.n_best);
    }
    return bytes;
}

}  // namespace pyspec
