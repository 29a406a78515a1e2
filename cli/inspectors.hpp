// What `strata inspect` tells of each kind of path.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "cli/facts.hpp"
#include "core/config.hpp"
#include "scheduler/store_reference.hpp"

namespace strata::cli {

/// Each throws Error when the thing cannot be read at all; what is merely not whole is told under "problem".
Facts inspect_model_directory(const std::filesystem::path& directory);
Facts inspect_model_config(const std::filesystem::path& file);
Facts inspect_safetensors(const std::filesystem::path& file);
Facts inspect_safetensors_index(const std::filesystem::path& file);
/// The formats that --format names.
const std::map<std::string, DataFormat>& token_formats();
/// Throws invalid_data when the format is to be found out and the file does not tell.
void require_known_format(const std::filesystem::path& file, DataFormat format);
/// Reads the whole file once, for the range of its tokens. What makes it unfit to train on is told under "problem".
Facts inspect_tokens(const std::filesystem::path& file, DataFormat format);
Facts inspect_token_meta(const std::filesystem::path& file);
/// Writes FILE.meta.json for the vocabulary and tokenizer of a model, after a check of every token. Throws Error, and writes nothing, where
/// the tokens are not of that vocabulary.
void write_token_meta(const std::filesystem::path& file, DataFormat format, const std::filesystem::path& model_directory);
Facts inspect_checkpoint(const std::filesystem::path& checkpoint, const std::vector<scheduler::StoreMove>& moves);
Facts inspect_checkpoints_folder(const std::filesystem::path& folder);
Facts inspect_run_directory(const std::filesystem::path& directory, const std::vector<scheduler::StoreMove>& moves);
Facts inspect_store_directory(const std::filesystem::path& directory);
Facts inspect_run_config(const std::filesystem::path& file);
Facts inspect_metrics(const std::filesystem::path& file);
/// The plan without its parts.
Facts inspect_plan(const std::filesystem::path& file);
Facts inspect_trace(const std::filesystem::path& file);
Facts inspect_machine_rates(const std::filesystem::path& file);
Facts inspect_leftover(const std::filesystem::path& path);

/// The safetensors files of a model directory that would be read, or all there are when it names none of them as its weights.
std::set<std::filesystem::path> weight_files(const std::filesystem::path& directory);

}  // namespace strata::cli
