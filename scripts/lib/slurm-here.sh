#!/usr/bin/env bash
# A private Slurm on this machine alone, for tests: munged, slurmctld and slurmd on the loopback, all files in one folder.
#
#   slurm-here.sh FOLDER [SECONDS]
#
# Prints `ready` when jobs can be submitted (with SLURM_CONF=FOLDER/slurm.conf), continues until its standard input ends, then
# cancels what still runs and ends the daemons; so a test that dies takes its Slurm with it. Needs no systemd, no network, no
# name service and changes nothing outside FOLDER (which must exist, be private and have a short path). Any user can run it.
#
# The node HOST has 6 CPUs, however many the machine has, and 2 GPUs, which are none. Jobs of the partition `high` take the places of those in `low` (the
# default) and `abrupt`, which are requeued: in `low` they are told a minute before they are killed, in `abrupt` only SECONDS
# before, as those that are cancelled (KillWait, 4 by default). The partition `wide` has HOST and HOST-2, which is this machine
# once more, for jobs of two nodes; it is there where name spaces may be made, which takes root mostly.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin

if [ $# -lt 1 ] || [ ! -d "$1" ]; then
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0" >&2
    exit 2
fi
folder=$(cd "$1" && pwd)
kill_wait=${2:-4}
# The path of a socket has at most 107 bytes, and slurmd puts a host's name and a job's number into it.
if [ ${#folder} -gt 70 ]; then
    echo "slurm-here.sh: $folder is too long a name for a folder of sockets" >&2
    exit 1
fi
for tool in munged slurmctld slurmd scontrol sinfo squeue scancel python3; do
    command -v $tool >/dev/null || {
        echo "slurm-here.sh: $tool is missing (Debian: munge slurmctld slurmd slurm-client python3)" >&2
        exit 1
    }
done
host=$(uname -n)
host=${host%%.*}
export SLURM_CONF=$folder/slurm.conf

# Ports that nobody uses now, below those that the kernel gives to whoever asks for any: none of them is taken meanwhile, but by
# another Slurm that was started like this one and drew the same.
free_ports() {
    python3 - <<'PORTS'
import random
import socket
try:
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        end = max(int(file.read().split()[0]), 12000)
except OSError:
    end = 32768
found = []
while len(found) < 3:
    port = random.randrange(10000, end)
    with socket.socket() as trial:
        try:
            trial.bind(("", port))
        except OSError:
            continue
    if port not in found:
        found.append(port)
print(*found)
PORTS
}

mkdir -p "$folder"/{munge,state,spool,tmp,spool-2,tmp-2}
nodes=$host
# A second slurmd needs another name and other files under the same paths: nodes find each other's sockets by them.
apart=(unshare --mount --uts)
# In a chroot, whose root folder cannot be made private; it need not be where nothing that is mounted is shared.
grep -q ' shared:' /proc/self/mountinfo || apart+=(--propagation unchanged)
# shellcheck disable=SC2016 # for the inner shell, here and below
if "${apart[@]}" sh -c 'hostname "$2" && mount --bind "$1/spool-2" "$1/spool"' sh "$folder" "$host-2" 2>/dev/null; then
    nodes=$host,$host-2
fi
# slurmd looks for control groups though it is told to use none, and ends where it cannot tell their version (in a chroot). The
# plug-in for the first one asks for nothing before it is used.
echo CgroupPlugin=cgroup/v1 >"$folder/cgroup.conf"
ln -s /dev/null "$folder/gpu0"
ln -s /dev/zero "$folder/gpu1"
echo "NodeName=$host Name=gpu Flags=nvidia_gpu_env File=$folder/gpu[0-1]" >"$folder/gres.conf"
(umask 077 && head -c 128 /dev/urandom >"$folder/munge/key")

configure() {
    local port port1 port2
    read -r port port1 port2 < <(free_ports)
    cat >"$SLURM_CONF" <<CONF
ClusterName=here
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
CredType=cred/munge
# cred_expire is also how long a requeued job waits.
AuthInfo=socket=$folder/munge/socket,cred_expire=5
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
TmpFS=$folder/tmp
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd-%n.log
# Nothing of the machine is asked for but its processes: no cgroups, no accounting.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
GresTypes=gpu
ReturnToService=2
KillWait=$kill_wait
JobRequeue=1
# Open MPI names its files in /dev/shm after the number of the job: those of two Slurms must differ.
FirstJobId=$(shuf -i 1000-60000000 -n 1)
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=50000,batch_sched_delay=0
NodeName=$host NodeAddr=127.0.0.1 Port=$port1 CPUs=6 Gres=gpu:2
PartitionName=low Nodes=$host Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=60
PartitionName=abrupt Nodes=$host PriorityTier=1 PreemptMode=REQUEUE GraceTime=0
PartitionName=high Nodes=$host PriorityTier=2 PreemptMode=OFF
CONF
    [ "$nodes" = "$host" ] || cat >>"$SLURM_CONF" <<CONF
NodeName=$host-2 NodeAddr=127.0.0.1 Port=$port2 CPUs=2
PartitionName=wide Nodes=$nodes PriorityTier=1 PreemptMode=OFF
CONF
}

daemons=()

all_run() {
    local daemon
    for daemon in "${daemons[@]}"; do
        kill -0 "$daemon" 2>/dev/null || return 1
    done
}
# $1: how long at most, in tenths of a second, and not beyond the death of a daemon; the rest: what must come true
await() {
    local left=$1
    shift
    until "$@"; do
        left=$((left - 1))
        [ $left -gt 0 ] || return 1
        all_run || return 1
        sleep 0.1
    done
}
nodes_are_idle() {
    [ "$(timeout 5 sinfo -h -o %T 2>/dev/null | sort -u)" = idle ]
}

finish() {
    local file left tries
    trap '' EXIT HUP INT TERM
    if [ ${#daemons[@]} -ge 3 ]; then
        timeout 5 scancel --state=PENDING || true
        timeout 5 scancel --state=RUNNING --full --signal=KILL || true
        await 30 nodes_are_idle || true
    fi 2>/dev/null
    kill "${daemons[@]}" 2>/dev/null || true
    wait
    # What slurmd could not end any more, all but this script: all that this Slurm started has its configuration in the
    # environment. Again until there is none, since what is killed may have begun another one, and dies when it is scheduled.
    for ((tries = 100; tries > 0; tries--)); do
        left=()
        for file in /proc/[0-9]*/environ; do
            [ "$file" = "/proc/$$/environ" ] || ! grep -qsz "^SLURM_CONF=$SLURM_CONF\$" "$file" || left+=("${file//[!0-9]/}")
        done
        [ ${#left[@]} -gt 0 ] || break
        kill -KILL "${left[@]}" 2>/dev/null || true
        sleep 0.1
    done
}
trap finish EXIT
trap 'exit 1' HUP INT TERM

fail() {
    echo "slurm-here.sh: $1" >&2
    tail -n 5 "$folder"/{munge/log,slurmctld.log,daemons.log} >&2 2>/dev/null || true
    exit 1
}

# In the foreground, so that they are our children and we know their numbers; --force: the folder may be anyone's.
munged --foreground --force --key-file="$folder/munge/key" --socket="$folder/munge/socket" --num-threads=2 \
    --pid-file="$folder/munge/pid" --log-file="$folder/munge/log" --seed-file="$folder/munge/seed" \
    </dev/null >>"$folder/daemons.log" 2>&1 &
daemons+=($!)
await 300 test -S "$folder/munge/socket" || fail "munged does not start"
slurm_starts() {
    configure
    slurmctld -D -c -f "$SLURM_CONF" </dev/null >>"$folder/daemons.log" 2>&1 &
    daemons+=($!)
    slurmd -D -f "$SLURM_CONF" </dev/null >>"$folder/daemons.log" 2>&1 &
    daemons+=($!)
    if [ "$nodes" != "$host" ]; then
        # shellcheck disable=SC2016
        "${apart[@]}" sh -c 'hostname "$2" && mount --bind "$1/spool-2" "$1/spool" && mount --bind "$1/tmp-2" "$1/tmp" &&
            exec slurmd -D -N "$2" -f "$1/slurm.conf"' sh "$folder" "$host-2" </dev/null >>"$folder/daemons.log" 2>&1 &
        daemons+=($!)
    fi
    await 600 nodes_are_idle
}
tries=3
until slurm_starts; do
    tries=$((tries - 1))
    [ $tries -gt 0 ] || fail "Slurm does not come up"
    kill "${daemons[@]:1}" 2>/dev/null || true
    wait "${daemons[@]:1}" 2>/dev/null || true
    daemons=("${daemons[0]}")
done

echo ready
cat >/dev/null
