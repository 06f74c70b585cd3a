#!/bin/sh
# Measure, fit, validate and kernel checks on one GPU, for one small and one 8B-class model with random
# weights, inside 8 minutes. Every result goes to one folder.
#
#   benchmarks/gpu_check.sh FOLDER                      on the GPU
#   benchmarks/gpu_check.sh FOLDER --device cpu         the same steps with a tiny model, as a dry run
set -eu

folder=${1:?usage: gpu_check.sh FOLDER [--device cpu|cuda]}
device=cuda
[ "${2:-}" = --device ] && device=${3:?--device needs cpu or cuda}
python=${PYTHON:-python}
mkdir -p "$folder"

if [ "$device" = cuda ]; then
    configurations="servetwin/llama-250m:50:120:4 meta-llama/Llama-3.1-8B:150:60:2"
else
    configurations="servetwin/llama-tiny:${BUDGET:-40}:6:6"
fi

status=0
step() { # NAME COMMAND...: runs it, keeps what it says, and goes on whatever comes of it
    label=$1
    shift
    began=$(date +%s)
    if "$@" >"$folder/$label.txt" 2>&1; then outcome=done; else outcome="failed with $?"; status=1; fi
    echo "$label: $outcome after $(($(date +%s) - began)) s" | tee -a "$folder/steps.txt"
}

: >"$folder/steps.txt"
step kernels "$python" -m benchmarks.kernel_check --device "$device" --output "$folder/kernels.json"
for configuration in $configurations; do
    model=${configuration%%:*}
    rest=${configuration#*:}
    budget=${rest%%:*} requests=$(echo "$rest" | cut -d: -f2) rate=${rest##*:}
    name=$(basename "$model" | tr 'A-Z' 'a-z')
    cat >"$folder/$name.yaml" <<SCENARIO
name: $name on $device
model: $model
hardware: HARDWARE
dtype: bfloat16
engine: {policy: vllm-v1, max_num_seqs: 64, max_num_batched_tokens: 512, kv_blocks: 2048, max_model_len: 1024}
workload:
  arrivals: {process: poisson, rate_per_s: $rate}
  lengths: {uniform: {prompt: [32, 256], output: [16, 64]}}
  requests: $requests
SCENARIO
    step "$name-measure" servetwin calibrate measure --device "$device" --model "$model" \
        --budget "$budget" --output "$folder/$name.jsonl"
    step "$name-fit" servetwin calibrate fit "$folder/$name.jsonl" --output "$folder/$name.profile.json"
    hardware=$(sed -n 's/^{.*"hardware": "\([^"]*\)".*/\1/p;1q' "$folder/$name.jsonl")
    sed -i "s/HARDWARE/$hardware/" "$folder/$name.yaml"
    step "$name-validate" servetwin validate "$folder/$name.yaml" --profile "$folder/$name.profile.json" \
        --device "$device" --repeat 2 --json
done
exit $status
