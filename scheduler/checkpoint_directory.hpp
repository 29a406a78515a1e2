// The life of a checkpoint's directory: written under one name, given its own in one step, removed under a third. Whatever instant the
// process or the machine stops at, every whole checkpoint is found, and nothing half there is taken for one.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace strata::scheduler {

/// step-NNNNNNNN.partial is being written, or was when its run died. With its manifest it is whole: that is written last.
inline constexpr const char* kPartialSuffix = ".partial";
/// step-NNNNNNNN.removed is being removed, or was when its run died; it is never read.
inline constexpr const char* kRemovedSuffix = ".removed";

std::string checkpoint_name(int64_t step);

/// Whether the kernel's exchange of two names is used. `never` is for tests: not every file system has it.
enum class Exchange { automatic, never };

/// Gives a whole checkpoint directory, `NAME.partial`, its name. A checkpoint of that name is replaced: it goes only when the new one
/// has its place. Durable when it returns. Throws io.
void publish_checkpoint(const std::filesystem::path& partial, const std::filesystem::path& final_path,
                        Exchange exchange = Exchange::automatic);

/// Removes a directory of a checkpoints/ folder: it loses its name at once, its files after that. Throws io.
void remove_checkpoint(const std::filesystem::path& checkpoint);

/// Puts right what a killed process left in a checkpoints/ folder, which may be absent: a partial directory that is whole gets its name
/// unless a whole checkpoint has that; others, and what was being removed, go. The run's lock must be held. `narrate`, which may be empty,
/// hears of each checkpoint that was given its name. Throws io.
void settle_checkpoints(const std::filesystem::path& folder, const std::function<void(const std::string&)>& narrate);

/// A pinned checkpoint (of the best evaluation) is exempt from checkpoint.keep: it is neither counted nor removed until it is unpinned,
/// after which the next checkpoint that is written counts it again. The mark is an empty file in the checkpoint, durable on return.
/// A checkpoint that refers to the store does not outlive the store's next commit, pinned or not: pin it by SaveOptions::pinned
/// (checkpoint.hpp), which makes one that stands for itself. Throw io.
void pin_checkpoint(const std::filesystem::path& checkpoint);
void unpin_checkpoint(const std::filesystem::path& checkpoint);
bool is_pinned(const std::filesystem::path& checkpoint);
inline constexpr const char* kPinnedName = "pinned";

}  // namespace strata::scheduler
