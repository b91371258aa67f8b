#!/bin/sh
# slurm.sh <repository> <build folder>: a Slurm of one controller and two nodes, which are hosts.
set -eu
# shellcheck source=tests/nightly/common.sh
. "$(dirname "$0")/common.sh"
for program in slurmctld slurmd srun sbatch munged; do need $program "slurm-wlm and munge"; done
for program in mpirun.openmpi mpiexec.hydra; do need $program "openmpi-bin and mpich"; done
for library in openmpi mpich; do
    [ -x "$build/bin/mpi_hello_$library" ] || missing "MPI program" "there was no $library to build one with"
done
enter "$@"
make_hosts n1 n2

# ---------------------------------------------------------------- the cluster

mkdir -p "$here/munge" "$here/state" "$here/spool/n1" "$here/spool/n2" "$here/tmp/n1" "$here/tmp/n2"
dd if=/dev/urandom of="$here/munge/key" bs=1024 count=1 2>/dev/null
chmod 600 "$here/munge/key"
cpus="$(slurmd -C | sed -n 's/^NodeName=[^ ]* \(.*\) RealMemory.*/\1/p')"
cat >"$here/slurm.conf" <<CONF
ClusterName=nightly
SlurmctldHost=$(hostname)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# cred_expire: how long a job that is put back into the queue waits at least
AuthInfo=socket=$here/munge/socket,cred_expire=5
CryptoType=crypto/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1
StateSaveLocation=$here/state
SlurmdSpoolDir=$here/spool/%n
TmpFS=$here/tmp/%n
SlurmctldPidFile=$here/slurmctld.pid
SlurmdPidFile=$here/slurmd-%n.pid
SlurmctldLogFile=$here/slurmctld.log
SlurmdLogFile=$here/slurmd-%n.log
JobCompType=jobcomp/none
KillWait=20
MinJobAge=300
ReturnToService=2
NodeName=n[1-2] $cpus RealMemory=1000 State=UNKNOWN
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=low Nodes=ALL Default=YES PriorityTier=1
PartitionName=high Nodes=ALL PriorityTier=10
CONF
export SLURM_CONF="$here/slurm.conf"
logs="$here/slurmctld.log $here/slurmd-n1.log $here/slurmd-n2.log"

munged --force --socket "$here/munge/socket" --key-file "$here/munge/key" --num-threads 2 \
    --log-file "$here/munge/log" --pid-file "$here/munge/pid" --seed-file "$here/munge/seed"
slurmctld
for node in n1 n2; do on "$node" slurmd -N $node; done
await "two nodes that are idle" 30 sh -c 'sinfo -h -o "%D %t" | grep -qx "2 idle"'
srun --version

bin="$build/bin"
export ZERO_LOG=info OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# job <status> <options of sbatch and script...>: to its end, which has to be this status.
job() {
    want="$1" status=0
    shift
    rm -f "$here/got"
    sbatch --output "$here/got" --open-mode append --wait "$@" >"$here/err" 2>&1 || status=$?
    [ "$status" = "$want" ] || fail "job: exit status $status, should be $want: $*"
}

# ranks <transport> <how many> <srun, salloc and so on...>: hello's ranks.
ranks() {
    transport="$1" count="$2"
    shift 2
    "$@" >"$here/got" 2>"$here/err" || fail "$*"
    trained "$*" "$transport" "$count"
}

# ---------------------------------------------------------------- ranks

step "srun starts ranks"
ranks tcp 4 srun -N 2 --ntasks-per-node 2 "$bin/hello"
ranks tcp 3 srun -N 2 --ntasks 3 --overcommit --distribution block "$bin/hello"
ranks shm 4 srun -N 1 --ntasks 4 --overcommit "$bin/hello"
ranks any 1 srun --ntasks 1 "$bin/hello"
for manager in none pmi2 pmix; do
    ranks tcp 4 srun --mpi "$manager" -N 2 --ntasks-per-node 2 "$bin/hello"
done

step "MPI programs lend their communicator: MPICH by PMI, Open MPI by PMIx"
ZERO_LOG=warn "$bin/mpi_hello_mpich" >"$here/alone"
for how in pmi2:mpich pmix:openmpi; do
    srun --mpi "${how%:*}" -N 2 --ntasks-per-node 2 "$bin/mpi_hello_${how#*:}" >"$here/$how" \
        2>"$here/err" || fail "srun --mpi ${how%:*}"
    grep -q 'rank 0 of 4, .*transport tcp' "$here/err" || fail "srun --mpi ${how%:*}: no 4 ranks"
    cmp "$here/$how" "$here/alone" || fail "srun --mpi ${how%:*}: another fingerprint"
done

step "mpirun inside of an allocation: the inner launcher holds"
ranks tcp 4 salloc -N 2 --ntasks-per-node 2 mpirun.openmpi "$bin/hello"
ranks tcp 4 salloc -N 2 --ntasks-per-node 2 mpiexec.hydra -genv ZERO_PMI 1 "$bin/hello"

step "two steps of one job, at a time"
job 0 -N 2 --ntasks-per-node 2 --wrap "
    srun --overlap $bin/hello & first=\$!
    srun --overlap $bin/hello && wait \$first"
[ "$(grep -c "$fingerprint" "$here/got")" = 2 ] || fail "srun --overlap"

step "a batch script is one process, not a rank of several"
job 0 -N 2 --ntasks-per-node 2 --wrap "echo task \$SLURM_PROCID of \$SLURM_NTASKS; $bin/hello"
grep -q '^task 0 of 4$' "$here/got" || fail "the batch script has other variables than it used to"
trained "a batch script" any 1
job 0 -N 2 --ntasks-per-node 2 --wrap "$bin/zero-run -n 2 -- $bin/hello"
trained "zero-run in a batch script" shm 2

step "a rank dies: the others say which; the next start knows that it is the second"
status=0
srun -N 2 --ntasks-per-node 2 --kill-on-bad-exit=0 "$bin/tests/watched_rank" again 8 \
    >"$here/got" 2>"$here/err" || status=$?
[ "$status" != 0 ] || fail "a job whose rank 1 was killed succeeds"
[ "$(grep -c '^watched_rank: .*rank 1' "$here/err")" = 3 ] || fail "not all survivors name rank 1"
job 0 -N 2 --ntasks-per-node 2 --requeue --wrap "
    srun $bin/tests/watched_rank again 8 && exit
    [ -z \"\$SLURM_RESTART_COUNT\" ] && scontrol requeue \$SLURM_JOB_ID || exit 1"
[ "$(grep -c 'info core: rank 0 of 4' "$here/got")" = 2 ] || fail "not started twice"

# ---------------------------------------------------------------- agents

step "srun starts one zero-run a node"
srun -N 2 --ntasks-per-node 1 --exclusive "$bin/zero-run" --explain >"$here/got" 2>"$here/err" ||
    fail "--explain"
grep -q '^host  *1 of 2, .*SLURM_STEP_NUM_TASKS=2' "$here/got" || fail "--explain does not know Slurm"
ranks tcp 4 srun -N 2 --ntasks-per-node 1 --cpus-per-task 2 "$bin/zero-run" -- "$bin/hello"
ranks tcp 4 srun -N 2 --ntasks-per-node 1 "$bin/zero-run" -n 2 -- "$bin/hello"
if srun -N 2 --ntasks-per-node 2 "$bin/zero-run" -n 2 -- "$bin/hello" >"$here/got" 2>"$here/err"; then
    fail "two zero-runs a node start ranks"
fi
grep -q 'zero-run: .*Slurm has started several processes' "$here/err" || fail "another reason"

# ---------------------------------------------------------------- examples/clusters

small_gpt2 1000
train="$repository/examples/clusters/slurm/train.sbatch"
# submit <directory of checkpoints> <options and script...>: on two nodes; $id is the job's number.
submit() {
    rm -f "$here/got"
    export DATA="$here/text" CHECKPOINTS="$here/$1"
    shift
    id="$(sbatch --parsable --nodes 2 --output "$here/got" "$@")"
}
state() { [ "$(squeue --noheader --states all --jobs "$id" --format %T)" = "$1" ]; }
trains() { grep -q "step $1 " "$here/got"; }
completed() { # completed <what>: with the bits of the run that nobody has disturbed
    await "$1: the end" 200 state COMPLETED
    grep -q "$undisturbed" "$here/got" || fail "$1: not \"$undisturbed\""
}

step "train.sbatch: asked to stop two minutes before its time is over, it goes on in a next start"
network slow
submit signal --time 2 "$train"
completed "--signal"
grep -q 'zero-run: stopped on request after step' "$here/got" || fail "nobody has asked it to stop"
grep -q 'resumed at step' "$here/got" || fail "started anew"
grep -q "rank 0 of $((2 * $(nproc))), .*transport tcp" "$here/got" || fail "not a rank for each core"

step "train.sbatch: nodes are taken back for another job"
submit taken "$train"
await "the first step" 60 trains 1
srun --partition high --nodes 2 --ntasks-per-node 1 --exclusive true 2>"$here/err" || fail "the other job"
network fast
completed "preempted"
grep -q 'zero-run: stopped on request after step' "$here/got" || fail "preempted: not asked to stop"
grep -q 'resumed at step' "$here/got" || fail "preempted: started anew"

step "train.sbatch: another signal"
network slow
sed 's/^#SBATCH --signal=.*/#SBATCH --signal=USR1@120/; s/zero-run /zero-run --stop-signal USR1 /' \
    "$train" >"$here/usr1.sbatch"
submit usr1 "$here/usr1.sbatch"
await "the first step" 60 trains 1
scancel --signal USR1 "$id"
network fast
completed "USR1"
grep -q 'resumed at step' "$here/got" || fail "USR1: started anew"

step "scancel leaves nothing"
network slow
submit cancelled "$train"
await "the first step" 60 trains 1
scancel "$id"
await "the end" 30 state CANCELLED
none_left "scancel of agents" "$bin/(gpt2|zero-run)"
ls -d "$here/cancelled/step-"* >/dev/null 2>&1 || fail "cancelled: nothing was saved"
id="$(sbatch --parsable -N 2 --ntasks-per-node 2 --output "$here/got" --wrap \
    "srun gpt2 --stage 3 --data $here/text")"
await "the first step" 60 trains 1
scancel "$id"
none_left "scancel of ranks" "$bin/gpt2"
