// Judges the keys of a model's config.json that nothing reads.
#pragma once

#include <string>
#include <vector>

#include "core/json_fields.hpp"
#include "core/model.hpp"

namespace strata {

/// `unread` are keys of `document` that no reader asked for. One that is set and whose name says that it may change the model is refused
/// (to `unsupported`); other unknown ones, dropout, and keys of sibling architectures that transformers does not follow here are
/// noted in model.notes, a line a kind; those that have nothing to do with training are passed over.
void judge_unread_keys(const Json& document, const std::vector<std::string>& unread, ModelDescription& model, Problems& unsupported);

}  // namespace strata
