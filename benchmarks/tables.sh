#!/bin/bash
# The runs behind the tables of docs/attacks/{lamp,grab,fet,edr,mosaic}.md.
#
#     benchmarks/tables.sh MODEL DATA RESULTS [JOBS [RUN …]]   # MODEL: minilm or a folder; DATA: folder of *.tsv
#     python benchmarks/leakage.py --score RESULTS/lamp*.json
#
# Runs are named below; without names all are made, and those that are finished are not made again. With CUDA's
# multi-process service several of them share a GPU: each is many small kernels, and most of the GPU would be idle.
# Before the command, `gpu_share=0.3` gives each run that share of the GPU's memory, `device=cpu` keeps it off the GPU,
# `shards=8` lets eight processes share what is attacked one by one, and `grab=grab:best,rounds=1` or `bert_steps=300`
# makes expensive attacks cheaper. Where DATA has fewer sentences than a run takes, the last lines say which run.
set -eu
model=$1 data=$2 results=$3 jobs=${4:-1}
shift $(($# < 4 ? $# : 4))
cola="--model $model --data $data/cola.tsv --take 0:32"
tomatoes="--model $model --data $data/rotten_tomatoes.tsv --take 0:16"
banking="--model $model --data $data/banking77.tsv --take 0:16 --dropout"
pruned="--model $model --data $data/cola.tsv --take 0:16 --dropout"
few="--model $model --data $data/cola.tsv --take 0:16"
grab=${grab:-grab:best}
tiny="--model tiny --data $data/cola.tsv --take 0:32"

# FET takes one sentence after the other, and EDR does on a CPU: processes share the sentences, or the batches of them.
shards=${shards:-4}
parts() { # NAME MODEL DATA SENTENCES ARGUMENTS…
    local name=$1 target=$2 file=$3 part=$(($4 / shards)) number
    shift 4
    for number in $(seq 0 $((shards - 1))); do
        echo "$name.$number --model $target --data $data/$file.tsv --embeddings trained --separately" \
            "--take $((number * part)):$((number * part + part)) $*"
    done
}

# On a GPU EDR attacks all batches side by side; `groups=2` makes two runs of them, each half as long.
groups=${groups:-1}
together() { # the same
    if [ "${device:-auto}" = cpu ]; then parts "$@"; else shards=$groups parts "$@" | sed 's/ --separately//'; fi
}

# The pairs of sentences among the first 32 of CoLA with at most 12 tokens each: few enough for a CPU.
pairs() { # NAME ARGUMENTS…
    local name=$1 first
    shift
    for first in 0 2 6 18 20 22 28; do
        echo "$name.$first --model $model --data $data/cola.tsv --take $first:$((first + 2)) --batch-size 2 --dropout $*"
    done
}

# Batches of the papers' larger sizes, each a run of its own: `large=16` takes so many sentences of each size.
large=${large:-32}
batches() { # NAME SIZE ARGUMENTS…
    local name=$1 size=$2 first
    shift 2
    for first in $(seq 0 "$size" $(((large > size ? large : size) - 1))); do
        echo "$name.$((first / size)) --model $model --data $data/cola.tsv --take $first:$((first + size))" \
            "--batch-size $size --dropout $*"
    done
}

runs() {
    echo "
grab-dropout $cola --dropout --attack $grab
grab-no-masks $cola --dropout --attack $grab,learn_dropout=false
lamp-dropout $cola --dropout --attack lamp:best
lamp-no-prior $cola --attack lamp:best,alpha_lm=0
lamp $cola --attack lamp:best
grab-batch $cola --dropout --batch-size 4 --attack $grab
grab-batch-no-masks $cola --dropout --batch-size 4 --attack $grab,learn_dropout=false
lamp-batch $cola --dropout --batch-size 4 --attack lamp:best
grab-batch-relaxed $cola --dropout --batch-size 4 --know longest,dropout --attack $grab
lamp-baselines.0 $few --attack dlg --attack tag
lamp-baselines.1 $few --seed 1 --attack dlg --attack tag
lamp-baselines.2 $few --seed 2 --attack dlg --attack tag
lamp-baselines.3 $few --seed 3 --attack dlg --attack tag
lamp-paper $cola --attack lamp:paper,alpha_lm=0 --attack lamp:paper
lamp-words-frozen $cola --embeddings words-frozen --attack lamp:best,alpha_lm=0
lamp-tomatoes $tomatoes --attack lamp:best,alpha_lm=0 --attack lamp:best
grab-pruned99 $pruned --defense prune:0.99 --attack $grab --attack $grab,pruning_mask=false
grab-pruned90 $pruned --defense prune:0.9 --attack $grab --attack $grab,pruning_mask=false
lamp-l2l1 $cola --attack lamp-l2l1:best --attack lamp-l2l1:best,alpha=0
lamp-ablations $cola --attack lamp:best,alpha_reg=0 --attack lamp:best,discrete=end --attack lamp:best,discrete=none
grab-banking-no-labels $banking --know lengths,dropout --attack $grab
grab-banking $banking --attack $grab
lamp-noise $few --defense noise:0.0005 --attack lamp:best
grab-noise $few --defense noise:0.0005 --attack $grab
lamp-noise-1e-3 $few --defense noise:0.001 --attack lamp:best
grab-noise-1e-3 $few --defense noise:0.001 --attack $grab
sieve-noise-1e-3 $few --defense noise:0.001 --attack sieve
lamp-fedavg $cola --fedavg steps=4,lr=5e-5 --attack lamp:best
lamp-tiny $tiny --attack lamp:best --attack lamp:fast
grab-tiny $tiny --dropout --attack grab:best --attack grab:fast
lamp-bert-base --model bert-base-uncased --random-weights --data $data/cola.tsv --take 0:64 --attack lamp:best,steps=${bert_steps:-2000}"
    pairs grab-pairs --attack grab:fast
    pairs grab-pairs-relaxed --know longest,dropout --attack grab:fast
    parts fet-cola "$model" cola 64 --attack fet
    together edr-cola "$model" cola 64 --attack edr
    parts fet-sst2 "$model" sst2 64 --attack fet
    parts fet-tomatoes "$model" rotten_tomatoes 64 --attack fet
    together edr-tomatoes "$model" rotten_tomatoes 64 --attack edr
    parts mosaic-cola "$model" cola 64 --attack mosaic:angles
    parts fet-cola-searched "$model" cola 64 --attack fet:thorough,positions=false
    parts fet-textcnn textcnn cola 64 --attack fet
    parts fet-lstm lstm cola 64 --attack fet
    parts fet-tiny tiny cola 64 --attack fet
    together edr-tiny tiny cola 64 --attack edr
    parts fet-ablations "$model" cola 64 --attack fet,iterations=0 --attack fet,generations=0
    parts fet-all-layers "$model" cola 64 --attack fet,layers=all
    together edr-cola2 "$model" cola 64 --batch-size 2 --attack edr
    together edr-cola4 "$model" cola 128 --batch-size 4 --attack edr
    together mosaic-sums2 "$model" cola 64 --batch-size 2 --know labels,lengths --attack mosaic:sums
    parts mosaic-cola2 "$model" cola 64 --batch-size 2 --attack mosaic:angles
    parts mosaic-cola4 "$model" cola 128 --batch-size 4 --attack mosaic:angles
    parts mosaic-tiny2 tiny cola 64 --batch-size 2 --attack mosaic:angles
    parts mosaic-tiny4 tiny cola 128 --batch-size 4 --attack mosaic:angles
    parts fet-cola2 "$model" cola 64 --batch-size 2 --attack fet
    parts fet-cola4 "$model" cola 128 --batch-size 4 --attack fet
    parts fet-tiny2 tiny cola 64 --batch-size 2 --attack fet
    parts fet-tiny4 tiny cola 128 --batch-size 4 --attack fet
    parts mosaic-tomatoes "$model" rotten_tomatoes 64 --attack mosaic:angles
    parts mosaic-sst2 "$model" sst2 64 --attack mosaic:angles
    parts fet-tomatoes-searched "$model" rotten_tomatoes 64 --attack fet:thorough,positions=false
    parts fet-sst2-searched "$model" sst2 64 --attack fet:thorough,positions=false
    parts mosaic-lstm lstm cola 64 --attack mosaic:angles
    parts mosaic-textcnn textcnn cola 64 --attack mosaic:angles
    parts fet-tiny-ablations tiny cola 64 --attack fet,iterations=0 --attack fet,generations=0 --attack fet,layers=all
    together edr-sst2 "$model" sst2 64 --attack edr
    local size
    for size in 8 16 32 64 128; do
        batches "grab-batch$size" "$size" --attack grab:paper
        batches "lamp-batch$size" "$size" --attack lamp:paper
        batches "sieve-batch$size" "$size" --attack sieve
    done
    echo "grab-roberta --model roberta-base --random-weights --data $data/cola.tsv --take 0:8 --dropout --attack grab:paper
lamp-roberta --model roberta-base --random-weights --data $data/cola.tsv --take 0:8 --dropout --attack lamp:paper
sieve-roberta --model roberta-base --random-weights --data $data/cola.tsv --take 0:8 --dropout --attack sieve"
}

# Give the names on the command line, or all.
chosen() {
    local name new
    [ $# -gt 0 ] || { runs | grep . && return; }
    for name; do
        case $name in
        fet-*-thorough) new=${name%-thorough} new=mosaic-${new#fet-} ;;
        lamp-no-polish) new=lamp-paper ;;
        *) new=$name ;;
        esac
        [ "$new" = "$name" ] || echo "$name is now $new" >&2
        name=$new
        runs | grep -E "^$name(\.[0-9]+)? " || { echo "no run named $name" >&2 && return 2; }
    done
}
lines=$(chosen "$@") # before anything is started: in a pipe a wrong name would only cut the list short

mkdir -p "$results"
names=$(cut -d' ' -f1 <<< "$lines")
if [ "$jobs" -gt 1 ] && command -v nvidia-cuda-mps-control > /dev/null; then
    export CUDA_MPS_PIPE_DIRECTORY=/tmp/gradleak-mps CUDA_MPS_LOG_DIRECTORY=/tmp/gradleak-mps
    mkdir -p /tmp/gradleak-mps
    nvidia-cuda-mps-control -d || true
fi
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} results gpu_share=${gpu_share:-1} device=${device:-auto}
xargs -P "$jobs" -L1 bash -c '
    name=$0; python3 benchmarks/leakage.py "$@" --device "$device" --gpu-share "$gpu_share" -o "$results/$name.json" > "$results/$name.log" 2>&1' <<< "$lines"
for name in $names; do # what a table may not claim
    grep "^fewer sentences than asked for" "$results/$name.log" | sed "s/^/$name: /" >&2 || true
done
