// Reads what a Hugging Face configuration says of rotary position embeddings.
#pragma once

#include "core/json_fields.hpp"
#include "core/model.hpp"

namespace strata {

/// Fills model.rope, whose sizes are read already, from rope_theta, rope_scaling, rope_parameters and original_max_position_embeddings
/// with the precedence of transformers 5. Wrong values are problems of `root`; what is not built goes to `unsupported`.
void read_rope(ObjectReader& root, ModelDescription& model, Problems& unsupported);

/// Whether a key is there with any value but null, false, 0, or an empty list, object or string.
bool is_set(const Json& value);

}  // namespace strata
