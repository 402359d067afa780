#!/usr/bin/env bash
# Does distributed training work between these nodes? scripts/test_ddp_minimal.py on all of them; its exit code, the
# same on each. To be started on each node, in any order:
#
#     NODE_RANK=0 NNODES=2 scripts/test_distributed_setup.sh                          # says its address to the others
#     NODE_RANK=1 NNODES=2 MASTER_ADDR=10.0.0.1 scripts/test_distributed_setup.sh
#
# MASTER_PORT (29500) and the port after it must be open on node 0; NPROC_PER_NODE is one rank per GPU unless set
# (without GPUs: NPROC_PER_NODE=2).
# Words are further options of ddp-run: --preflight strict compares the nodes' versions as well.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) || exit
NNODES=${NNODES:-2}
NODE_RANK=${NODE_RANK:-0}
MASTER_PORT=${MASTER_PORT:-29500}
if [ -z "${MASTER_ADDR:-}" ]; then
    if [ "$NODE_RANK" != 0 ]; then
        echo "node $NODE_RANK needs MASTER_ADDR, the address of node 0 (there: hostname -I)" >&2
        exit 2
    fi
    # An address, as names often mean another host elsewhere, or 127.0.1.1 here.
    MASTER_ADDR=$(hostname -I | cut -d ' ' -f 1)
    if [ -z "$MASTER_ADDR" ]; then
        echo "this host has no address: set MASTER_ADDR" >&2
        exit 2
    fi
    echo "on the other nodes: NODE_RANK=1 NNODES=$NNODES MASTER_ADDR=$MASTER_ADDR MASTER_PORT=$MASTER_PORT $0" >&2
fi

export NPROC_PER_NODE=${NPROC_PER_NODE:-gpu}
# shellcheck disable=SC2016
exec ddp-run --nnodes "$NNODES" --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \
    --nccl-debug info \
    --on-success 'echo "node $DDP_RUN_NODE_RANK: passed"' \
    --on-failure 'echo "node $DDP_RUN_NODE_RANK: exit code $DDP_RUN_EXIT_CODE"
                  find "$DDP_RUN_FOLDER" -name nccl.log -size +0 -exec echo "NCCL wrote" {} ";"' \
    "$@" "$here/test_ddp_minimal.py"
