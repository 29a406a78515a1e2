# How much of the demo fits into its time: functions for scripts/demo.sh, which sources this file. Times are in seconds.

# The whole demo, after the build, has to end within three minutes; this leaves some of them to what is not counted.
demo_limit=165
# A step of the demo's model takes about this many steps of the small one (computation 18, bytes 6).
demo_small_steps_per_step=20
demo_most_steps=100
# Few enough for a slow machine, and enough for the loss to fall.
demo_fewest_steps=4

# demo_step_seconds METRICS_JSONL: the slowest step but the first, which also warms up.
demo_step_seconds() {
  awk 'match($0, /"seconds":[0-9.eE+-]+/) {
         seconds = substr($0, RSTART + 10, RLENGTH - 10) + 0
         if (++steps == 1) first = seconds
         else if (seconds > slowest) slowest = seconds
       }
       END { if (!steps) exit 1; printf "%.3f\n", steps == 1 ? first : slowest }' "$1"
}

# demo_choose SMALL_STEP_SECONDS: "full 5", "full 2" or "small 2": the model, and the number of steps that prove that placement changes
# no bit (they run twice). The full model wants these and 20 steps that lower its loss.
demo_choose() {
  awk -v small="$1" -v ratio=$demo_small_steps_per_step -v limit=$demo_limit 'BEGIN {
    step = small * ratio
    if (step * 10 <= limit / 5) print "full 5"
    else if (step * 24 <= limit * 0.9) print "full 2"
    else if (small * 10 <= limit / 5) print "small 5"
    else print "small 2"
  }'
}

# demo_steps SECONDS_LEFT STEP_SECONDS: how many steps fit, from demo_fewest_steps to demo_most_steps.
demo_steps() {
  awk -v left="$1" -v step="$2" -v least=$demo_fewest_steps -v most=$demo_most_steps 'BEGIN {
    fit = step > 0 ? int(left / step) : most
    print (fit < least ? least : (fit > most ? most : fit))
  }'
}
