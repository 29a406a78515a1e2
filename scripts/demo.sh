#!/usr/bin/env bash
# Installs what is missing, builds, and trains a small Llama-shaped model whose training state does not fit the memory it is given:
# the rest lives on disk. Ends with what was where and what was proved.
# Usage: scripts/demo.sh [--no-setup] [--steps N]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

setup=1
steps=100
while [[ $# -gt 0 ]]; do
  case $1 in
    --no-setup) setup=0 ;;
    --steps)
      steps=${2:?--steps needs a number}
      shift
      ;;
    -h | --help)
      sed -n '2,4s/^# //p' "$0"
      exit 0
      ;;
    *)
      echo "demo: unknown argument $1" >&2
      exit 2
      ;;
  esac
  shift
done

if [[ $setup -eq 1 ]]; then
  scripts/setup.sh
fi
scripts/build.sh strata

demo=build/demo
strata=build/strata
rm -rf "$demo"
mkdir -p "$demo"

echo
echo "== The text: this project's own sources and documents"
find README.md docs core cpu_adam gpu tiers scheduler cli tests \
  \( -name '*.md' -o -name '*.hpp' -o -name '*.cpp' \) -type f -print0 | sort -z | xargs -0 cat >"$demo/text.txt"
echo "$(wc -c <"$demo/text.txt") bytes in $demo/text.txt"

echo
echo "== The model: random weights for examples/demo/model.json"
"$strata" init examples/demo/model.json "$demo/model" --seed 1

echo
echo "== Training with 136 MiB of device and 56 MiB of host memory, the rest on disk"
"$strata" train examples/demo/config.json --set steps="$steps" --run-dir "$demo/run" | tee "$demo/result.txt"

echo
echo "== The same first 5 steps twice: as above, and with all state on the device; every bit must be equal"
# The step count shapes the learning rate, so both runs share it.
"$strata" train examples/demo/config.json --set steps=5 --set 'tiers.nvme=[{"path": "build/demo/nvme-5", "capacity": "2GiB"}]' \
  --run-dir "$demo/tiered" --state-hash 2>/dev/null >"$demo/tiered.txt"
"$strata" train examples/demo/config.json --set steps=5 --set device.memory=4GiB --set tiers.nvme='[]' \
  --set 'placement={"parameters":"device","gradients":"device","optimizer":"device"}' \
  --run-dir "$demo/device" --state-hash 2>/dev/null >"$demo/device.txt"
value() { awk -v key="$2" '$1 == key { print $2 }' "$1"; }
tiered=$(value "$demo/tiered.txt" state_hash)
device=$(value "$demo/device.txt" state_hash)
echo "tiers   $tiered"
echo "device  $device"
if [[ -z $tiered || $tiered != "$device" ]]; then
  echo "demo: placement changed the numbers; this is a defect" >&2
  exit 1
fi

echo
echo "== What the run left on disk is whole, and leaves as a Hugging Face model"
"$strata" verify "$demo/run/checkpoints"
"$strata" export "$demo/run/checkpoints" "$demo/export"

echo
echo "== What was where"
"$strata" plan examples/demo/config.json --set steps="$steps"
echo "== What was proved"
echo "- loss fell from $(value "$demo/result.txt" first_loss) to $(value "$demo/result.txt" last_loss) in $steps steps"
echo "- the state did not fit the device and host budgets together; the rest was on disk, moved and updated every step"
echo "- 5 steps with the state on three tiers and 5 steps with it all on the device end in the same bits (hash above)"
echo "- every checksum of the final state on disk was read back and is right; $demo/export is a Hugging Face directory"
