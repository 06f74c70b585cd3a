#!/usr/bin/env bash
# Try real load generators against `servetwin serve --simulated`, offline, each in an environment of its own.
#
#   tools/load_tools.sh FOLDER [guidellm] [aiperf]     PYTHON=python3 SERVETWIN=servetwin PORT=8711
#
# FOLDER keeps the environments (guidellm about 1.5 GB because it needs torch, aiperf about 1.2 GB) and results.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$(mkdir -p "${1:?name a folder for the environments}" && cd "$1" && pwd)
shift
tools=("${@:-guidellm}")
python=${PYTHON:-python3}
port=${PORT:-8711}
url=http://127.0.0.1:$port
model=meta-llama/Llama-3.1-8B

install_tool() { # name, requirements...
    local name=$1 && shift
    [ -x "$folder/$name/bin/$name" ] && return
    "$python" -m venv "$folder/$name"
    "$folder/$name/bin/pip" install --quiet "$@"
}

for tool in "${tools[@]}"; do
    case $tool in
        guidellm) install_tool guidellm 'guidellm==0.8.1' 'torch==2.13.0' ;;
        aiperf) install_tool aiperf 'aiperf==0.13.0' ;;
        *) echo "unknown tool $tool: guidellm or aiperf" >&2 && exit 2 ;;
    esac
done
[ -d "$folder/tokenizer" ] || "$folder/${tools[0]}/bin/python" tools/make_tokenizer.py "$folder/tokenizer"

${SERVETWIN:-servetwin} serve scenarios/quickstart.yaml --simulated --port "$port" &
server=$!
trap 'kill -TERM $server 2>/dev/null; wait $server || true' EXIT
for _ in $(seq 100); do
    curl --silent --fail "$url/health" >/dev/null && break
    sleep 0.3
done

for tool in "${tools[@]}"; do
    case $tool in
        guidellm)
            HF_HUB_OFFLINE=1 "$folder/guidellm/bin/guidellm" run \
                --backend "kind=openai_http,target=$url" \
                --profile kind=concurrent,streams=4 \
                --constraint kind=max_requests,count=40 \
                --tokenizer "kind=huggingface_auto,model=$folder/tokenizer" \
                --data kind=synthetic_text,prompt_tokens=128,output_tokens=32 \
                --disable-progress --output "kind=json,path=$folder/guidellm.json"
            ;;
        aiperf) # without HF_HUB_OFFLINE, which 0.13.0 takes for a bad repository name
            "$folder/aiperf/bin/aiperf" profile \
                --model "$model" --url "$url" --endpoint-type chat --streaming \
                --tokenizer "$folder/tokenizer" --use-server-token-count \
                --concurrency 4 --request-count 40 --isl 128 --osl 32 \
                --extra-inputs ignore_eos:true --ui none --artifact-dir "$folder/aiperf-results"
            ;;
    esac
done
echo "--- what the server counted"
curl --silent "$url/metrics" | grep -E '^vllm:(generation_tokens_total|request_success_total|.*_seconds_(sum|count))'
