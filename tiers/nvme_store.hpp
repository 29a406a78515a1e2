// What makes a store with another I/O engine or other transfer limits than the defaults: for tests of the store and of what uses it.
#pragma once

#include "tiers/transfer.hpp"

namespace strata::tiers {

struct StoreHooks {
  IoEngineFactory engine_factory = make_io_engine;
  TransferOptions transfers;  // engine and regions come from the store's options
};

/// As NvmeStore::create and NvmeStore::open.
std::unique_ptr<NvmeStore> create_store(const StoreOptions& options, const StoreHooks& hooks);
std::unique_ptr<NvmeStore> open_store(const StoreOptions& options, const StoreHooks& hooks);

}  // namespace strata::tiers
