#!/usr/bin/env bash
# Does distributed training work on this machine by itself? scripts/test_ddp_minimal.py on 2 ranks; its exit code.
#
#     scripts/test_single_node.sh                      # one GPU per rank, or CPU where there is none
#     NPROC_PER_NODE=4 scripts/test_single_node.sh
#     DDP_BACKEND=gloo scripts/test_single_node.sh     # without NCCL
#     scripts/test_single_node.sh --console rank0      # further options of ddp-run
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) || exit
unset NNODES NODE_RANK MASTER_ADDR MASTER_PORT # those of a job on several nodes

# the hooks' variables are ddp-run's to fill in
# shellcheck disable=SC2016
exec ddp-run --nnodes 1 --nproc-per-node "${NPROC_PER_NODE:-2}" --nccl-debug info \
    --on-success 'echo "single node: passed. Next, where there are several: scripts/test_distributed_setup.sh"' \
    --on-failure 'echo "single node: exit code $DDP_RUN_EXIT_CODE, so it is not the network between nodes"
                  find "$DDP_RUN_FOLDER" -name nccl.log -size +0 -exec echo "NCCL wrote" {} ";"' \
    "$@" "$here/test_ddp_minimal.py"
