#!/usr/bin/env bash
# Runs one training in a Vast.ai instance: set up, install ddp-run if it is missing, run, save the run's folder, stop or
# destroy the instance if asked to. scripts/vast_launch.py sends this file; it can also be the on-start script of a
# template (launch mode SSH or Jupyter), with its settings as `-e NAME=VALUE` or as lines in front of it.
#
# The exit code is the training's own. It is also in $STATE_DIR/exit_code and in the last line, which is for programs.
#
#   TRAIN_CMD          the command, as in a shell: ddp-run --nproc-per-node gpu train.py; or as this script's words
#   INSTALL_FROM       what pip installs where there is no ddp-run: a package, a path, git+https://...
#   SETUP_CMD          shell commands before that, in WORK_DIR; the first one that fails ends it all
#   WORK_DIR           where all of this happens (/workspace)
#   UPLOAD_CMD         saves RUN_FOLDER: a shell command, or an https:// URL that takes a PUT of a .tar.gz
#   ON_END             keep, stop or destroy the instance (keep)
#   DESTROY_ON_FAILURE 1: destroy it even if the folder of a failed run is saved nowhere; else it is stopped then
#   RESUME             1: start again after a reboot in the middle of a run (the program must find its checkpoint)
#   LAUNCH_ID          a word for the last line, by which its reader knows it
#   LINGER_S           seconds between the last line and the end of the instance, to read its log (120)
#
# Vast.ai runs this at every boot. A run that has ended is not started again until $STATE_DIR is removed.
set -u
WORK_DIR=${WORK_DIR:-/workspace}
STATE_DIR=${STATE_DIR:-$WORK_DIR/.ddp-run-vast}
ON_END=${ON_END:-keep}

say() { echo "vast-onstart: $*"; }

say_last() { # EXIT_CODE UPLOADED NEXT
    say "finished id=${LAUNCH_ID:--} exit=$1 uploaded=$2 next=$3 folder=${RUN_FOLDER:--}"
}

refuse_second_run() {
    local code
    if [ -s "$STATE_DIR/exit_code" ]; then
        code=$(cat "$STATE_DIR/exit_code")
        say "the run of an earlier boot ended with exit code $code: not started again"
    elif [ -e "$STATE_DIR/started" ] && [ "${RESUME:-0}" != 1 ]; then
        code=75
        say "an earlier boot ended in the middle of the run: not started again (RESUME=1 does that)"
    else
        return
    fi
    say "to start it again: rm -r $STATE_DIR"
    say_last "$code" unknown keep
    exit "$code"
}

set_up() { # must not be called in a condition: bash ignores set -e there
    cd "$WORK_DIR" || exit
    if [ -n "${SETUP_CMD:-}" ]; then
        say "setting up"
        set +u -e # as in a script of the user's own
        eval "$SETUP_CMD"
        set -u +e
    fi
    if command -v ddp-run >/dev/null; then
        return
    elif [ -z "${INSTALL_FROM:-}" ]; then
        say "there is no ddp-run here, and INSTALL_FROM is not set"
        exit 127
    fi
    say "installing ddp-run"
    PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --quiet "$INSTALL_FROM" || exit
}

train() {
    local pid
    # ddp-run's hook says where the run's folder is, unless the user has a hook there.
    # shellcheck disable=SC2016
    local tell='printf %s "$DDP_RUN_FOLDER" >"$STATE_DIR/folder"'
    export STATE_DIR DDP_RUN_VERDICT_LINE=1 DDP_RUN_ON_END=${DDP_RUN_ON_END:-$tell}
    "$@" &
    pid=$!
    trap 'kill -TERM "$pid"' TERM INT HUP
    while kill -0 "$pid" 2>/dev/null; do wait "$pid"; done # a signal ends the wait, not the run
    wait "$pid"
}

upload() { # says yes, failed, or no: nothing was asked for, or there is nothing
    if [ -z "${UPLOAD_CMD:-}" ] || [ ! -d "$RUN_FOLDER" ]; then
        echo no
    elif save >&2; then
        echo yes
    else
        echo failed
    fi
}

save() {
    case $UPLOAD_CMD in
    https://*)
        tar -C "$(dirname "$RUN_FOLDER")" -czf "$STATE_DIR/run.tar.gz" "$(basename "$RUN_FOLDER")" &&
            curl --fail --silent --show-error --retry 3 --upload-file "$STATE_DIR/run.tar.gz" "$UPLOAD_CMD"
        ;;
    *) bash -c "$UPLOAD_CMD" ;;
    esac
}

what_next() { # EXIT_CODE UPLOADED; says keep, stop or destroy
    local unsaved=0
    if [ "$2" = failed ] || { [ "$1" != 0 ] && [ "$2" = no ]; }; then unsaved=1; fi
    if [ "$ON_END" = destroy ] && [ $unsaved = 1 ] && [ "${DESTROY_ON_FAILURE:-0}" != 1 ]; then
        echo stop
    else
        echo "$ON_END"
    fi
}

end_instance() { # stop or destroy
    if [ -z "${CONTAINER_ID:-}" ] || [ -z "${CONTAINER_API_KEY:-}" ]; then
        say "cannot $1 the instance: CONTAINER_ID or CONTAINER_API_KEY is not set"
        return
    fi
    command -v vastai >/dev/null || PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --quiet vastai
    sleep "${LINGER_S:-120}"
    export VAST_API_KEY=$CONTAINER_API_KEY # may start, stop and destroy this instance only
    case $1 in # vastai says on its output how it went: its exit code is 0 either way
    destroy) vastai destroy instance "$CONTAINER_ID" --yes ;;
    *) vastai stop instance "$CONTAINER_ID" ;;
    esac
}

finish() { # EXIT_CODE
    local uploaded next
    trap - EXIT TERM INT HUP
    set +e
    echo "$1" >"$STATE_DIR/exit_code"
    RUN_FOLDER=$(cat "$STATE_DIR/folder" 2>/dev/null || realpath -e ddp-run-logs/latest 2>/dev/null)
    if [ "$STATE_DIR/started" -nt "$RUN_FOLDER" ]; then RUN_FOLDER=; fi # of another run
    export RUN_FOLDER EXIT_CODE=$1
    uploaded=$(upload)
    next=$(what_next "$1" "$uploaded")
    say_last "$1" "$uploaded" "$next"
    [ "$next" = keep ] || end_instance "$next"
    exit "$1"
}

case $ON_END in keep | stop | destroy) ;; *)
    say "ON_END=$ON_END: expected keep, stop or destroy"
    exit 2
    ;;
esac
[ $# -gt 0 ] || eval "set -- ${TRAIN_CMD:-}"
if [ $# -eq 0 ]; then
    say "TRAIN_CMD is not set: the command to run"
    exit 2
fi
refuse_second_run
mkdir -p "$STATE_DIR" && : >"$STATE_DIR/started" || exit 73
trap 'finish $?' EXIT
set_up
train "$@"
