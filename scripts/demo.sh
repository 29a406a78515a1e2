#!/usr/bin/env bash
# Installs what is missing, builds, and trains a small Llama-shaped model whose training state does not fit the memory it is given:
# the rest lives on disk. Ends with what was where and what was proved, within three minutes after the build: on a slow machine with
# fewer steps, or with a smaller model, and it says so.
# Usage: scripts/demo.sh [--no-setup] [--steps N]      --steps N trains the full model for N steps, however long that takes
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/demo_size.sh
source scripts/demo_size.sh

setup=1
forced_steps=
while [[ $# -gt 0 ]]; do
  case $1 in
    --no-setup) setup=0 ;;
    --steps)
      forced_steps=${2:?--steps needs a number}
      if [[ ! $forced_steps =~ ^[1-9][0-9]*$ ]]; then
        echo "demo: --steps needs a number from 1 on, not '$forced_steps'" >&2
        exit 2
      fi
      shift
      ;;
    -h | --help)
      sed -n '2,5s/^# //p' "$0"
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
begin=$SECONDS

# value FILE KEY: of the "key value" lines that strata prints.
value() { awk -v key="$2" '$1 == key { print $2 }' "$1"; }
# quietly COMMAND...: shows what it said only when it fails; 124 is a run that was ended for want of time.
quietly() {
  local status=0
  "$@" 2>"$demo/said.txt" || status=$?
  if [[ $status -ne 0 && $status -ne 124 ]]; then cat "$demo/said.txt" >&2; fi
  return $status
}
# at_most SECONDS COMMAND...: strata ends after the step under way, with its state on disk, and the status is then 124.
at_most() { timeout --foreground --signal=TERM "$@"; }
# use_model full|small: makes its model directory and sets `given`, its configuration.
use_model() {
  local prefix= most_threads=16
  if [[ $1 == small ]]; then prefix=small- most_threads=8; fi
  config=examples/demo/${prefix}config.json
  # Each compute thread has a workspace in device memory, of which there is little on purpose.
  local threads
  threads=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
  given=("$config" --set device.threads=$((threads < most_threads ? threads : most_threads)))
  rm -rf "$demo/model"
  quietly "$strata" init "examples/demo/${prefix}model.json" "$demo/model" --seed 1
}

echo
echo "== The text: this project's own sources and documents"
find README.md docs core cpu_adam gpu tiers scheduler cli tests \
  \( -name '*.md' -o -name '*.hpp' -o -name '*.cpp' \) -type f -print0 | sort -z | xargs -0 cat >"$demo/text.txt"
echo "$(wc -c <"$demo/text.txt") bytes in $demo/text.txt"

if [[ -n $forced_steps ]]; then
  size=full proof_steps=5
else
  echo
  echo "== How fast is this machine: two steps of a small model"
  use_model small >"$demo/init.txt"
  quietly "$strata" train "${given[@]}" --set steps=2 --set 'tiers.nvme=[{"path": "build/demo/nvme-probe", "capacity": "2GiB"}]' \
    --run-dir "$demo/probe" >"$demo/probe.txt"
  probe_seconds=$(demo_step_seconds "$demo/probe/metrics.jsonl")
  read -r size proof_steps <<<"$(demo_choose "$probe_seconds")"
  echo "$probe_seconds s a step"
  if [[ $size == small ]]; then
    echo "The demo's model of 27M parameters would take too long here, so the small one (4.6M) is trained, with budgets in proportion"
  fi
fi

echo
echo "== The model: random weights"
use_model "$size"

# prove SECONDS: both runs; the step count shapes the learning rate, so they share it.
prove() {
  local end=$((SECONDS + $1))
  rm -rf "$demo"/{tiered,device,nvme-proof}
  quietly at_most "$1" "$strata" train "${given[@]}" --set steps="$proof_steps" \
    --set 'tiers.nvme=[{"path": "build/demo/nvme-proof", "capacity": "2GiB"}]' \
    --run-dir "$demo/tiered" --state-hash >"$demo/tiered.txt" || return
  local left=$((end - SECONDS))
  quietly at_most $((left > 1 ? left : 1)) "$strata" train "${given[@]}" --set steps="$proof_steps" \
    --set device.memory=1GiB --set tiers.nvme='[]' \
    --set 'placement={"parameters":"device","gradients":"device","optimizer":"device"}' \
    --run-dir "$demo/device" --state-hash >"$demo/device.txt"
}
prove_header() {
  echo
  echo "== $proof_steps steps twice: on three tiers, and with all state on the device; every bit must be equal"
}
prove_header
status=0
if [[ -z $forced_steps && $size == full ]]; then
  prove $((demo_limit / 3)) || status=$?
  if [[ $status -eq 124 ]]; then
    echo "The machine became slower than it was measured to be; the small model (4.6M) is trained instead"
    use_model small >"$demo/init.txt"
    proof_steps=2
    prove_header
  fi
fi
if [[ $size == small || $status -eq 124 || -n $forced_steps ]]; then
  status=0
  prove 86400 || status=$?
fi
[[ $status -eq 0 ]] || exit $status
tiered=$(value "$demo/tiered.txt" state_hash)
device=$(value "$demo/device.txt" state_hash)
echo "tiers   $tiered"
echo "device  $device"
if [[ -z $tiered || $tiered != "$device" ]]; then
  echo "demo: placement changed the numbers; this is a defect" >&2
  exit 1
fi

budgets=$(sed -n 's/.*"device":.*"memory": "\([^"]*\)".*/\1 of device/p; s/.*"host": {"memory": "\([^"]*\)".*/ and \1 of host/p' "$config" | tr -d '\n')
steps=${forced_steps:-$demo_most_steps}
stop_after=()
if [[ -z $forced_steps ]]; then
  step_seconds=$(demo_step_seconds "$demo/tiered/metrics.jsonl")
  elapsed=$((SECONDS - begin))
  # What follows the steps reads and writes the state a few times, as the runs until now did at their start and end.
  after=$((elapsed / 6 + 5))
  left=$((demo_limit - elapsed - after))
  left=$((left > 5 ? left : 5))
  steps=$(demo_steps "$left" "$step_seconds")
  stop_after=(at_most "$left")
fi
echo
echo "== Training with $budgets memory, the rest on disk"
if [[ $steps -lt $demo_most_steps && -z $forced_steps ]]; then
  echo "$steps of $demo_most_steps steps, since a step takes $step_seconds s here"
fi
warmup=$((steps >= 10 ? steps / 10 : 1))
status=0
"${stop_after[@]}" "$strata" train "${given[@]}" --set steps="$steps" --set lr_schedule.warmup_steps="$warmup" --run-dir "$demo/run" |
  tee "$demo/result.txt" || status=${PIPESTATUS[0]}
if [[ $status -eq 124 ]]; then
  echo "Ended before step $steps, since the steps became slower than those that were measured; the state of the last one is on disk"
elif [[ $status -ne 0 ]]; then
  exit "$status"
fi
steps_done=$(value "$demo/result.txt" steps)
first_loss=$(value "$demo/result.txt" first_loss) last_loss=$(value "$demo/result.txt" last_loss)
if [[ $steps_done -ge 8 ]] && ! awk -v first="$first_loss" -v last="$last_loss" 'BEGIN { exit !(last < first) }'; then
  echo "demo: the loss did not fall (from $first_loss to $last_loss in $steps_done steps); this is a defect" >&2
  exit 1
fi

echo
echo "== What the run left on disk is whole, and leaves as a Hugging Face model"
"$strata" verify "$demo/run/checkpoints"
"$strata" export "$demo/run/checkpoints" "$demo/export"

echo
echo "== What was where"
"$strata" plan "${given[@]}" --set steps="$steps" --set lr_schedule.warmup_steps="$warmup"
echo "== What was proved, in $((SECONDS - begin)) s"
if [[ $steps_done -gt 1 ]]; then
  echo "- loss went from $first_loss to $last_loss in $steps_done steps"
else
  echo "- there was time for one step only (loss $first_loss): too little to see the loss fall; scripts/demo.sh --steps 100 takes its time"
fi
echo "- the state did not fit the device and host budgets together; the rest was on disk, moved and updated every step"
echo "- $proof_steps steps with the state on three tiers and $proof_steps steps with it all on the device end in the same bits (hash above)"
echo "- every checksum of the final state on disk was read back and is right; $demo/export is a Hugging Face directory"
