#!/bin/bash
# The runs behind the tables of docs/attacks/lamp.md and docs/attacks/grab.md.
#
#     benchmarks/hybrid.sh MODEL DATA RESULTS [JOBS]     # MODEL: name or folder; DATA: folder with cola.tsv and others
#     python benchmarks/leakage.py --score RESULTS/*.json
#
# Finished runs are not run again. With CUDA's multi-process service several runs share a GPU: each of them is many small
# kernels, and most of the GPU would be idle.
set -eu
model=$1 data=$2 results=$3 jobs=${4:-1}
mkdir -p "$results"
if [ "$jobs" -gt 1 ] && command -v nvidia-cuda-mps-control > /dev/null; then
    export CUDA_MPS_PIPE_DIRECTORY=$results/mps CUDA_MPS_LOG_DIRECTORY=$results/mps
    mkdir -p "$results/mps"
    nvidia-cuda-mps-control -d || true
fi
cola="--model $model --data $data/cola.tsv --take 0:32"
tomatoes="--model $model --data $data/rotten_tomatoes.tsv --take 0:16"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} results
runs="
$cola --dropout --attack grab
$cola --dropout --attack grab,learn_dropout=false
$cola --dropout --attack lamp
--model bert-base-uncased --random-weights --data $data/cola.tsv --take 0:64 --attack lamp
$cola --attack lamp,alpha_lm=0
$cola --attack lamp
$cola --attack lamp,alpha_lm=0,polish=0
$cola --attack lamp,polish=0
$cola --embeddings words-frozen --attack lamp,alpha_lm=0
$cola --attack dlg
$cola --attack tag
$cola --attack lamp-l2l1
$cola --attack lamp-l2l1,alpha=0
$cola --attack lamp,alpha_reg=0
$cola --attack lamp,discrete=end
$cola --attack lamp,discrete=none
$tomatoes --attack lamp,alpha_lm=0
$tomatoes --attack lamp
$cola --dropout --batch-size 4 --attack grab
$cola --dropout --batch-size 4 --attack grab,learn_dropout=false
$cola --dropout --batch-size 4 --attack lamp
$cola --dropout --batch-size 4 --know longest,dropout --attack grab
$cola --dropout --defense prune:0.9 --attack grab
$cola --dropout --defense prune:0.9 --attack grab,pruning_mask=false
$cola --dropout --defense prune:0.99 --attack grab
$cola --dropout --defense prune:0.99 --attack grab,pruning_mask=false
$cola --fedavg steps=4,lr=5e-5 --attack lamp
$cola --defense noise:0.0005 --attack lamp
$cola --defense noise:0.0005 --attack grab
--model tiny --data $data/cola.tsv --take 0:32 --attack lamp --attack lamp:fast
--model tiny --data $data/cola.tsv --take 0:32 --dropout --attack grab --attack grab:fast
"
grep . <<< "$runs" | nl -w2 -nrz | xargs -P "$jobs" -L1 bash -c '
    number=$0; python3 benchmarks/leakage.py "$@" -o "$results/$number.json" > "$results/$number.log" 2>&1'
