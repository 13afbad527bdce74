// A saved state of one sequence, to come back to where rejected tokens can't be cut from a memory.
//
// What is saved is only what can't be cut: of a recurrent model everything, of a hybrid one the recurrent half, of a
// sliding window the window. It stays on the device where the tensors are, or comes to the host; the buffer is kept
// and used again, so that there is one per sequence at most.
#pragma once

#include <llama.h>

#include <cstdint>
#include <exception>
#include <vector>

namespace pyspec {

class Checkpoint {
public:
    // Saves the sequence as it is, which holds n_tokens tokens. False: it could not be saved.
    bool save(llama_context * ctx, llama_seq_id seq, int32_t n_tokens, bool on_device) noexcept {
        clear();
        flags_ = LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY | (on_device ? LLAMA_STATE_SEQ_FLAGS_ON_DEVICE : 0);
        try {
            llama_synchronize(ctx);
            const size_t size = llama_state_seq_get_size_ext(ctx, seq, flags_);
            data_.resize(size);
            if (size == 0 || llama_state_seq_get_data_ext(ctx, data_.data(), size, seq, flags_) != size) {
                return false;
            }
        } catch (const std::exception &) {
            return false;
        }
        n_tokens_ = n_tokens;
        return true;
    }

    // Puts the saved state back and cuts what the sequence holds behind it. False: the sequence is in no usable state.
    bool restore(llama_context * ctx, llama_seq_id seq) const noexcept {
        if (n_tokens_ < 0) {
            return false;
        }
        try {
            if (llama_state_seq_set_data_ext(ctx, data_.data(), data_.size(), seq, flags_) != data_.size()) {
                return false;
            }
        } catch (const std::exception &) {
            return false;
        }
        llama_memory_t memory = llama_get_memory(ctx);
        return llama_memory_seq_rm(memory, seq, n_tokens_, -1) && llama_memory_seq_pos_max(memory, seq) == n_tokens_ - 1;
    }

    // Tokens the sequence held when it was saved; -1: nothing is saved.
    int32_t n_tokens() const { return n_tokens_; }

    int64_t bytes() const { return (int64_t) data_.capacity(); }

    void clear() { n_tokens_ = -1; }

private:
    std::vector<uint8_t> data_;
    int32_t n_tokens_ = -1;
    llama_state_seq_flags flags_ = 0;
};

}  // namespace pyspec
