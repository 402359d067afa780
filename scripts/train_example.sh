#!/usr/bin/env bash
# A start script to copy: checks before the start, retries of what a retry can cure, a quiet NCCL, the training's exit
# code. On one node, or on each of several:
#
#     scripts/train_example.sh train.py --epochs 3
#     NODE_RANK=0 NNODES=2 scripts/train_example.sh train.py --epochs 3
#     NODE_RANK=1 NNODES=2 MASTER_ADDR=10.0.0.1 scripts/train_example.sh train.py --epochs 3
#
# NPROC_PER_NODE (one rank per GPU; without GPUs a number), MAX_RETRIES (3), MASTER_PORT (29500), DATA_PATH (must be
# readable, if set).
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) || exit
[ $# -gt 0 ] || set -- "$here/example_train.py"

# What NCCL cannot find out by itself belongs here; otherwise leave it alone.
# export NCCL_SOCKET_IFNAME=eth0   # ip addr shows which interface the nodes share
# export NCCL_IB_DISABLE=1         # without InfiniBand, if NCCL tries it nevertheless

# Under a second, without torch; what it says is shown where this host is unfit. Without --quick it tries ranks too.
doctor=(ddp-run doctor --quick)
[ -z "${DATA_PATH:-}" ] || doctor+=(--data-path "$DATA_PATH")
report=$("${doctor[@]}" 2>&1) || { code=$?; echo "$report" >&2; exit "$code"; }

nodes=(--nnodes 1)
if [ "${NNODES:-1}" != 1 ]; then
    if [ -z "${MASTER_ADDR:-}" ] && [ "${NODE_RANK:-0}" != 0 ]; then
        echo "node $NODE_RANK needs MASTER_ADDR, the address of node 0 (there: hostname -I)" >&2
        exit 2
    fi
    # An address needs no name service; of a name that is given, ddp-run takes the address as well.
    MASTER_ADDR=${MASTER_ADDR:-$(hostname -I | cut -d ' ' -f 1)}
    nodes=(--nnodes "$NNODES" --node-rank "${NODE_RANK:-0}" --master-port "${MASTER_PORT:-29500}"
        --master-addr "${MASTER_ADDR:?this host has no address: set MASTER_ADDR}")
fi

export NPROC_PER_NODE=${NPROC_PER_NODE:-gpu}
exec ddp-run "${nodes[@]}" --max-retries "${MAX_RETRIES:-3}" --nccl-debug warn "$@"
