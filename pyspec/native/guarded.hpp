// libllama's decode call for code without the GIL: C++ exceptions become a return code.
#pragma once

#include <llama.h>

namespace pyspec {

constexpr int32_t process_threw = -100;

// llama_process(DECODE), then waits for the result, so that time spent here is time spent decoding.
inline int32_t decode_and_wait(llama_context * ctx, llama_batch_ext * batch) noexcept {
    try {
        const int32_t code = llama_process(ctx, LLAMA_PROCESS_TYPE_DECODE, batch);
        if (code == 0) {
            llama_synchronize(ctx);
        }
        return code;
    } catch (...) {
        return process_threw;
    }
}

}  // namespace pyspec
