#!/usr/bin/env bash
# Two machines by hand, each with ddp-run, the same torch, the same code and data. On both, in the folder of train.py:
#
#   ./two-machines.sh 0 10.0.0.7 train.py --epochs 3      # on the first machine, whose address is 10.0.0.7
#   ./two-machines.sh 1 10.0.0.7 train.py --epochs 3      # on the other; which one is started first does not matter
#
# All ports between the two must be open; rented containers mostly map only a few, and then share no job.
# Set on both, if you need to: PORT (29500, and the next 32), DDP_RUN_SECRET (the same text: without one, anybody who
# reaches the ports can end the job), NCCL_SOCKET_IFNAME (the interface that joins them, if there are several).
set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,5p' "$0" >&2; exit 2; }
node=$1 first=$2
shift 2
port=${PORT:-29500}
exec ddp-run \
    --nnodes 2 \
    --node-rank "$node" \
    --master-addr "$first" \
    --master-port "$port" \
    --nproc-per-node "${NPROC_PER_NODE:-gpu}" \
    --max-retries "${MAX_RETRIES:-2}" \
    "$@"
