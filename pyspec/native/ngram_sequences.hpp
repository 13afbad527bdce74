// An n-gram method for all sequences: keeps each one's drafter up to date with its tokens, and asks it.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "ngram_drafter.hpp"
#include "ngram_history.hpp"

namespace pyspec {

class NgramSequences {
public:
    NgramTally tally;

    // One more sequence. Takes the drafter over.
    void add(NgramDrafter * drafter) {
        std::unique_ptr<NgramDrafter> owned(drafter);
        slots_.emplace_back();
        slots_.back().drafter = std::move(owned);
    }

    int32_t size() const { return (int32_t) slots_.size(); }

    // The sequence consists of these tokens now. Costs what is new, not what there is. With `writing` the prompt is
    // over: what comes behind the committed tokens is the model's.
    void see(int32_t seq, const Tokens & tokens, Token seed, bool writing) noexcept {
        const Stopwatch watch(tally.index_ns);
        guarded(slots_[seq], [&](Slot & slot) { update(slot, { tokens, seed }, writing); });
    }

    // A draft of at least n_min and at most n_max tokens into `out`, or none. Returns the length of one that was too
    // short.
    int32_t propose(int32_t seq, const Tokens & tokens, Token seed, int32_t n_min, int32_t n_max, Tokens & out) noexcept {
        see(seq, tokens, seed, true);
        const Stopwatch watch(tally.propose_ns);
        ++tally.proposals;
        guarded(slots_[seq], [&](Slot & slot) {
            slot.drafter->draft(slot.history.tokens(), n_max, out);
            slot.drafted = !out.empty() && (int32_t) out.size() >= n_min;
        });
        if (slots_[seq].drafted) {
            ++tally.drafts;
            tally.drafted += (int64_t) out.size();
            return 0;
        }
        const int32_t discarded = (int32_t) out.size();
        out.clear();
        tally.discarded += discarded;
        return discarded;
    }

    // How its draft went: `accepted` of its first `submitted` tokens. 0 submitted: it was not verified.
    void settle(int32_t seq, int32_t submitted, int32_t accepted) noexcept {
        guarded(slots_[seq], [&](Slot & slot) {
            if (slot.drafted && submitted > 0) {
                slot.drafter->learn(submitted, accepted, tally);
            }
            slot.drafted = false;
        });
    }

    // The end of a request.
    void forget(int32_t seq) noexcept {
        guarded(slots_[seq], [&](Slot & slot) {
            if (slot.history.size() > 0) {
                slot.drafter->end(slot.history.tokens(), slot.prompt_size());
            }
            slot.restart();
        });
    }

    // How many tokens it knows of a sequence; -1 if they aren't the sequence's first ones.
    int64_t n_known(int32_t seq, const Tokens & tokens, Token seed) const {
        const History & history = slots_[seq].history;
        return history.is_prefix_of({ tokens, seed }) ? (int64_t) history.size() : -1;
    }

private:
    static constexpr size_t reading = (size_t) -1;

    struct Slot {
        std::unique_ptr<NgramDrafter> drafter;
        History history;
        size_t n_prompt = reading;  // tokens before the first that was written
        bool drafted = false;       // a draft is waiting for its verdict

        size_t prompt_size() const { return std::min(n_prompt, history.size()); }

        void restart() {
            drafter->clear();
            history.clear();
            n_prompt = reading;
            drafted = false;
        }
    };

    class Stopwatch {
    public:
        explicit Stopwatch(int64_t & total) : total_(total), started_(clock::now()) {}
        Stopwatch(const Stopwatch &) = delete;
        ~Stopwatch() {
            total_ += std::chrono::duration_cast<std::chrono::nanoseconds>(clock::now() - started_).count();
        }

    private:
        using clock = std::chrono::steady_clock;
        int64_t & total_;
        clock::time_point started_;
    };

    void update(Slot & slot, const HistoryView & now, bool writing) {
        size_t kept = slot.history.n_unchanged(now);
        if (kept < slot.history.size()) {
            ++tally.rebuilds;
            slot.drafter->end(slot.history.tokens(), slot.prompt_size());
            slot.restart();
            slot.n_prompt = now.size();
            kept = 0;
        }
        const size_t n_known = slot.history.size();
        if (writing && slot.n_prompt == reading) {
            slot.n_prompt = now.tokens.size();
        }
        if (n_known < now.size()) {
            slot.history.assign(now, kept);
            slot.drafter->extend(slot.history.tokens(), n_known);
        }
    }

    // Out of memory halfway through an update: what there is can't be trusted, the sequence begins anew.
    template <typename Work>
    void guarded(Slot & slot, Work && work) noexcept {
        try {
            work(slot);
        } catch (const std::exception &) {
            ++tally.failures;
            slot.restart();
        }
    }

    std::vector<Slot> slots_;
};

}  // namespace pyspec
