// Rows of a batch that carry a hidden state, alone or with a token; and encoding them. Sizes and ids are the caller's to
// check: libllama throws for some and refuses others, and both are an error code here.
#pragma once

#include <llama.h>

#include <shared_mutex>

#include "guarded.hpp"

namespace pyspec {

// A token with a hidden state, for NextN layers and EAGLE-3.
inline bool add_pair(llama_batch_ext * batch, llama_token token, llama_pos pos, llama_seq_id seq, bool output,
                     const float * row, size_t width) noexcept {
    try {
        const int32_t i = llama_batch_ext_add_token(batch, seq, token);
        return i >= 0 && llama_batch_ext_set_pos(batch, i, &pos) &&
               llama_batch_ext_set_embd_token(batch, i, llama_embd{row, 1, width}) &&
               llama_batch_ext_set_output_logits(batch, i, output);
    } catch (...) {
        return false;
    }
}

// A hidden state in the place of a token. With multi-dimensional positions a text's are {p, p, p, 0}.
inline bool add_features(llama_batch_ext * batch, llama_pos pos, llama_seq_id seq, bool output, const float * row,
                         size_t width) noexcept {
    try {
        const llama_pos positions[4] = {pos, pos, pos, 0};
        const int32_t i = llama_batch_ext_add_embd(batch, seq, llama_embd{row, 1, width});
        return i >= 0 && llama_batch_ext_set_pos(batch, i, positions) &&
               llama_batch_ext_set_output_logits(batch, i, output);
    } catch (...) {
        return false;
    }
}

inline int32_t encode_and_wait(HeadLock & lock, llama_context * ctx, llama_batch_ext * batch) noexcept {
    const std::shared_lock<std::shared_mutex> hold(lock.mutex());
    try {
        const int32_t code = llama_process(ctx, LLAMA_PROCESS_TYPE_ENCODE, batch);
        if (code == 0) {
            llama_synchronize(ctx);
        }
        return code;
    } catch (...) {
        return process_threw;
    }
}

}  // namespace pyspec
