#!/bin/sh
# clusters.sh <repository> <build folder>: the files of examples/clusters are what their platforms take,
# and the command lines in them do what they say under the variables that the platforms set.
#
# A platform is what it sets: a host of it is a process here. Where zero-run knows jobs of several hosts
# two of them run together; --explain says what each host finds in any case.
set -eu
clusters="$1/examples/clusters" tools="$1/tests/ranks/clusters" build="$2"
here="$(mktemp -d)"
trap 'rm -rf "$here"' EXIT
trap 'exit 1' HUP INT TERM
bad=0

wrong() {
    echo "clusters.sh: $*"
    bad=1
}

# ------------------------------------------------------------------ what the files are

python3 -c 'import yaml' 2>/dev/null || { echo "skipped: no Python module yaml (python3-yaml)" && exit 77; }
manifests() { python3 "$tools/manifests.py" "$@"; }

manifests check "$clusters"/*/*.yml "$clusters"/*/*.yaml || wrong "a platform would refuse a file"
mkdir "$here/commands"
manifests write "$here/commands" "$clusters"/*/*.yml "$clusters"/*/*.yaml
command_of() { # command_of <file>
    name="${1##*/}"
    echo "$here/commands/${name%.*}.sh"
}
bash -n "$clusters/slurm/train.sbatch" || wrong "train.sbatch is no script"
if command -v shellcheck >/dev/null; then
    shellcheck "$clusters/slurm/train.sbatch" "$0" || wrong "shellcheck"
fi
for program in "$clusters"/*/*.py; do
    python3 - "$program" <<'END' || wrong "$program does not compile"
import sys
compile(open(sys.argv[1], encoding="utf-8").read(), sys.argv[1], "exec")
END
done
for program in ray/ray_ranks.py spark/spark_ranks.py; do
    [ "$(wc -l <"$clusters/$program")" -le 60 ] || wrong "$program has more than 60 lines"
done
# What the image is made of is there.
sed -n 's/^COPY \([^-][^ ]*\) .*/\1/p' "$clusters/Dockerfile" | while read -r file; do
    [ -e "$1/$file" ] || echo "$file"
done | grep . && wrong "Dockerfile: no such file"
path="$(sed -n 's/^  path: \([^ ]*\).*/\1/p' "$clusters/azureml/environment.yml")"
[ -e "$clusters/azureml/$path/$(sed -n 's/^  dockerfile_path: //p' "$clusters/azureml/environment.yml")" ] ||
    wrong "environment.yml: there is no Dockerfile"

# The page names every file.
for file in "$clusters"/*/*; do
    grep -q "\`${file#"$clusters/"}\`" "$clusters/README.md" || [ "${file##*/}" = environment.yml ] ||
        wrong "README.md does not name $file"
done

# ------------------------------------------------------------------ a small program in their place

mkdir "$here/bin" "$here/text"
ln -s "$build/bin/zero-run" "$here/bin/zero-run"
cat >"$here/bin/gpt2" <<END
#!/bin/sh
[ -z "\${SLOW-}" ] || set -- "\$@" --steps 100000
exec "$build/bin/gpt2" --layers 1 --width 16 --heads 2 --context 16 --batch 1 --sample 0 \
    \$([ -n "\${SLOW-}" ] || echo --steps 3) "\$@"
END
chmod +x "$here/bin/gpt2"
head -c 20000 "$clusters/README.md" >"$here/text/a.txt"

several_hosts=""
if "$build/bin/zero-run" --help | grep -q -e '--nodes'; then several_hosts=yes; fi

# on "<variables>" <command...>: a process of a platform, which has no other variables.
on() {
    variables="$1"
    shift
    # shellcheck disable=SC2086 # words are variables; a JSON text in one has no blanks
    env -i PATH="$here/bin:$PATH" HOME="$here" DATA="$here/text" CHECKPOINTS="$here/checkpoints" \
        ${SLOW:+SLOW=$SLOW} $variables "$@"
}

fingerprint() { sed -n 's/.*\(fingerprint step [0-9]* [0-9a-f]*\).*/\1/p' "$here/out"; }

expected=""
# run <what> "<variables>" <status> <command...>
run() {
    what="$1" variables="$2" want="$3" status=0
    shift 3
    rm -rf "$here/checkpoints"
    on "$variables" "$@" >"$here/out" 2>&1 || status=$?
    [ "$status" = "$want" ] || { wrong "$what: exit status $status, should be $want" && cat "$here/out"; }
    [ "$want" = 0 ] || return 0
    : "${expected:=$(fingerprint)}"
    { [ -n "$expected" ] && [ "$(fingerprint)" = "$expected" ]; } ||
        { wrong "$what: another fingerprint than the first run" && cat "$here/out"; }
}

# What a file has in front of its program.
options_of() { sed -n 's/.*zero-run \(.*\) -- *\(gpt2.*\|\\\)$/\1/p' "$(command_of "$1")"; }

# finds <file> "<variables>" <what host it is>: by --explain, with the options of the file.
finds() {
    file="$1" variables="$2" host="$3"
    options="$(options_of "$file")"
    [ -n "$options" ] || wrong "$file: no zero-run in its command"
    if [ -n "$several_hosts" ]; then
        want="^host  *$host,"
    else # it says which of several processes it is
        want="^\\(host  *$host\\|rank  *${host%% *} of ${host##* }\$\\|error .*JOB_COMPLETION_INDEX\\)"
        options="$(echo "$options" | sed 's/--nodes [0-9]*//; s/--hostfile [^ ]*//')"
    fi
    # shellcheck disable=SC2086 # options are words
    on "$variables" zero-run $options --explain >"$here/out" 2>&1 || true
    grep -q "$want" "$here/out" ||
        { wrong "$file: --explain of host $host under: $variables" && cat "$here/out"; }
}

# together <file> "<variables of host 0>" "<variables of host 1>": as one job, where zero-run can.
together() {
    finds "$1" "$2" "0 of 2"
    finds "$1" "$3" "1 of 2"
    [ -n "$several_hosts" ] || return 0
    on "$3" sh "$(command_of "$1")" >"$here/second" 2>&1 &
    run "$1, two hosts" "$2" 0 sh "$(command_of "$1")"
    wait "$!" || wrong "$1: the second of two hosts"
}

alone() { # alone <file> "<variables>": a job of one host
    run "$1, one host" "$2" 0 sh "$(command_of "$1")"
}

# ------------------------------------------------------------------ platforms

run "no platform" "" 0 gpt2 --stage 3 --micro-batches 16 --data "$here/text"
port=$((20000 + $$ % 10000))

azure="AZUREML_EXPERIMENT_ID=e1 AZUREML_RUN_ID=r$$"
two="$azure AZUREML_NODE_COUNT=2 AZ_BATCH_HOST_LIST=127.0.0.1,127.0.0.2"
azure_of() { echo "AZUREML_CR_NODE_RANK=$1 NODE_RANK=$1"; }
ranks_of() { echo "RANK=$1 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port"; }
together azureml/job-pytorch.yml "$two $(azure_of 0) $(ranks_of 0)" "$two $(azure_of 1) $(ranks_of 1)"
alone azureml/job-pytorch.yml "$azure AZUREML_NODE_COUNT=1 RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 NODE_RANK=0"

mpi_of() { echo "OMPI_COMM_WORLD_RANK=$1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1"; }
two="$two AZ_BATCH_MASTER_NODE=127.0.0.1:6000"
together azureml/job-mpi.yml "$two $(azure_of 0) $(mpi_of 0)" "$two $(azure_of 1) $(mpi_of 1)"
alone azureml/job-mpi.yml "$azure OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1"

tensorflow() { # tensorflow <number of workers> <this one>
    echo "TF_CONFIG={\"cluster\":{\"worker\":[\"127.0.0.1:$((port + 1))\"$([ "$1" = 1 ] ||
        echo ",\"127.0.0.2:$((port + 1))\"")]},\"task\":{\"type\":\"worker\",\"index\":$2}}"
}
together azureml/job-tensorflow.yml "$azure $(tensorflow 2 0)" "$azure $(tensorflow 2 1)"
alone azureml/job-tensorflow.yml "$azure $(tensorflow 1 0)"

pet() { # pet <hosts> <this one> <ranks of each>
    echo "PET_NNODES=$1 PET_NODE_RANK=$2 PET_NPROC_PER_NODE=$3 PET_MASTER_ADDR=127.0.0.1 PET_MASTER_PORT=$((port + 3))"
}
together kubernetes/trainjob.yaml "$(pet 2 0 1) JOB_COMPLETION_INDEX=0" "$(pet 2 1 1) JOB_COMPLETION_INDEX=1"
alone kubernetes/trainjob.yaml "$(pet 1 0 1) JOB_COMPLETION_INDEX=0"
bare() { echo "RANK=$1 WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((port + 3))"; }
together kubernetes/pytorchjob.yaml "$(pet 2 0 2) $(bare 0)" "$(pet 2 1 2) $(bare 1)"
alone kubernetes/pytorchjob.yaml "$(pet 1 0 1) RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((port + 3))"

job="JOBSET_NAME=zero-gpt2 KUBERNETES_SERVICE_HOST=10.96.0.1"
grep -q '^MASTER_ADDR=zero-gpt2-hosts-0-0.zero-gpt2$' "$here/commands/jobset.variables" || wrong "jobset.yaml: host 0's name"
job="$job MASTER_ADDR=127.0.0.1 MASTER_PORT=$((port + 4))"
together kubernetes/jobset.yaml "$job JOB_COMPLETION_INDEX=0" "$job JOB_COMPLETION_INDEX=1"

# A pod is told to go: all ranks save, and what they end with is a restart that counts nowhere.
rm -rf "$here/checkpoints" "$here/out"
# shellcheck disable=SC2046 # words are variables
env -i PATH="$here/bin:$PATH" HOME="$here" DATA="$here/text" CHECKPOINTS="$here/checkpoints" SLOW=1 \
    $(pet 1 0 1) sh -c "exec $(cat "$(command_of trainjob.yaml)")" >"$here/out" 2>&1 &
first=$!
tries=0
until grep -qs 'step 1 ' "$here/out" || [ $tries -eq 200 ]; do
    sleep 0.1
    tries=$((tries + 1))
done
kill -TERM $first
status=0
wait $first || status=$?
{ [ "$status" = 75 ] && ls -d "$here/checkpoints/step-"*; } >/dev/null 2>&1 ||
    { wrong "trainjob.yaml: asked to stop: exit status $status" && cat "$here/out"; }

# ------------------------------------------------------------------ SageMaker

export SAGEMAKER_BASE_DIR="$here/ml"
mkdir -p "$here/ml/input/config" "$here/ml/input/data"
ln -s "$here/text" "$here/ml/input/data/training"
printf '{"stage": "\\"3\\""}' >"$here/ml/input/config/hyperparameters.json"
printf '{"current_host": "algo-1", "hosts": ["algo-1"]}' >"$here/ml/input/config/resourceconfig.json"
run "sagemaker/train.py" "SAGEMAKER_BASE_DIR=$here/ml" 0 python3 "$clusters/sagemaker/train.py"
[ ! -e "$here/ml/output/failure" ] || wrong "sagemaker/train.py: a success has a reason"
rm -rf "$here/ml/checkpoints"
printf '{"stage": "7"}' >"$here/ml/input/config/hyperparameters.json"
run "sagemaker/train.py, a bad stage" "SAGEMAKER_BASE_DIR=$here/ml" 2 python3 "$clusters/sagemaker/train.py"
grep -q 'zero-run ended with 2' "$here/ml/output/failure" || wrong "sagemaker/train.py: no reason"
sagemaker() { echo "SM_HOSTS=[\"algo-1\",\"algo-2\"] SM_CURRENT_HOST=algo-$1 SM_NUM_GPUS=8"; }
for host in 1 2; do
    on "$(sagemaker $host)" zero-run --explain >"$here/out" 2>&1 || true
    grep -q "^host  *$((host - 1)) of 2, ranks of each 8," "$here/out" || wrong "SageMaker's host $host"
done

# ------------------------------------------------------------------ Slurm

cat >"$here/bin/srun" <<'END'
#!/bin/sh
[ "$1" = --kill-on-bad-exit=0 ] && shift
export SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_NUM_NODES=1 SLURM_STEP_TASKS_PER_NODE=1
export SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_STEP_NODELIST=n1
exec "$@"
END
printf '#!/bin/sh\necho "$@" >>"%s/scontrol"\n' "$here" >"$here/bin/scontrol"
chmod +x "$here/bin/srun" "$here/bin/scontrol"
slurm="SLURM_JOB_ID=812 SLURM_PROCID=0 SLURM_NTASKS=1"
run "slurm/train.sbatch" "$slurm" 0 bash "$clusters/slurm/train.sbatch"
[ ! -e "$here/scontrol" ] || wrong "train.sbatch: a success was requeued"
sed -n 's/^#SBATCH //p' "$clusters/slurm/train.sbatch" >"$here/sbatch"
for option in --ntasks-per-node=1 --exclusive --mem=0 --signal=TERM@120 --requeue; do
    grep -qx -e "$option" "$here/sbatch" || wrong "train.sbatch: no $option"
done
step() { echo "SLURM_JOB_ID=812 SLURM_STEP_ID=0 SLURM_PROCID=$1 SLURM_LOCALID=0 SLURM_NODEID=$1 SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=2 SLURM_STEP_TASKS_PER_NODE=1(x2) SLURM_STEP_NODELIST=n[1-2]"; }
for host in 0 1; do
    on "$(step $host)" zero-run --explain >"$here/out" 2>&1 || true
    grep -q "^\\(host\\|rank\\)  *$host of 2" "$here/out" || wrong "Slurm's node $host"
done

# ------------------------------------------------------------------ Ray, Spark: they start ranks

for program in ray/ray_ranks.py spark/spark_ranks.py; do
    for ranks in 1 2; do
        run "$program, $ranks ranks" "PYTHONPATH=$tools/stubs PYTHONDONTWRITEBYTECODE=1" 0 \
            python3 "$clusters/$program" "$ranks" gpt2 --stage 3 --micro-batches 16 --data "$here/text"
    done
    # 75 does not count, others do, 78 ends it.
    cat >"$here/bin/fails" <<'END'
#!/bin/sh
[ "$ZERO_RANK" = 1 ] || exit 0
starts="$(cat "$HOME/starts")"
echo "${starts#* }" >"$HOME/starts"
exit "${starts%% *}"
END
    chmod +x "$here/bin/fails"
    for case in "75 75 75 75 0 0:0" "1 75 1 9 0 0:9" "1 78 0 0:78" "64 0:64"; do
        echo "${case%:*}" >"$here/starts"
        status=0
        on "PYTHONPATH=$tools/stubs PYTHONDONTWRITEBYTECODE=1" python3 "$clusters/$program" 2 fails ||
            status=$?
        [ "$status" = "${case##*:}" ] || wrong "$program: after $case: exit status $status"
    done
done

status=0
on "PYTHONPATH=$tools/stubs PYTHONDONTWRITEBYTECODE=1 RESTARTS=0" \
    python3 "$clusters/ray/ray_ranks.py" 1 no-such-program >"$here/out" 2>&1 || status=$?
{ [ "$status" = 1 ] && grep -q '^ray_ranks.py: .*no-such-program' "$here/out"; } ||
    { wrong "ray_ranks.py: a missing program: exit status $status" && cat "$here/out"; }

# ------------------------------------------------------------------ what exit statuses do

# A stand-in of zero-run that ends with the next status of a list.
rm "$here/bin/zero-run"
cat >"$here/bin/zero-run" <<'END'
#!/bin/sh
starts="$(cat "$HOME/starts")"
echo "${starts#* }" >"$HOME/starts"
if [ "${starts%% *}" = wait ]; then
    sleep 20 &
    trap 'kill $!; echo >"$HOME/asked"; exit 75' TERM
    echo >"$HOME/waiting"
    wait $!
fi
exit "${starts%% *}"
END
chmod +x "$here/bin/zero-run"

ends() { # ends <file> "<statuses of zero-run>" <status of the pod>
    echo "$2" >"$here/starts"
    status=0
    sed 's/sleep 10/sleep 0/' "$(command_of "$1")" >"$here/command"
    on "" sh "$here/command" >"$here/out" 2>&1 || status=$?
    [ "$status" = "$3" ] || { wrong "$1: after $2: exit status $status, should be $3" && cat "$here/out"; }
}
for case in 0:0 1:1 64:64 78:78 75:143 137:1; do
    ends kubernetes/pytorchjob.yaml "${case%:*} 9" "${case#*:}"
done
for case in "0:0" "75 75 0:0" "75 78:78" "64:64" "137:137"; do
    ends kubernetes/mpijob.yaml "${case%:*} 9" "${case#*:}"
done

# The first process of a container is told to stop: so is zero-run, and the container does not start it
# again.
for case in kubernetes/pytorchjob.yaml:143 kubernetes/mpijob.yaml:75; do
    echo "wait 9" >"$here/starts"
    rm -f "$here/waiting" "$here/asked"
    sed 's/^sh -c/exec sh -c/' "$(command_of "${case%:*}")" >"$here/command"
    env -i PATH="$here/bin:$PATH" HOME="$here" DATA= CHECKPOINTS= sh "$here/command" \
        >"$here/out" 2>&1 & # not on(): the signal is for this process
    first=$!
    tries=0
    while [ ! -e "$here/waiting" ] && [ $tries -lt 100 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    kill -TERM $first
    status=0
    wait $first || status=$?
    { [ "$status" = "${case#*:}" ] && [ -e "$here/asked" ]; } ||
        { wrong "${case%:*}: asked to stop: exit status $status" && cat "$here/out"; }
done

# train.sbatch: 75 goes back into the queue, others do not.
for case in 75:0 78:78 1:1; do
    echo "${case%:*} 9" >"$here/starts"
    rm -f "$here/scontrol"
    status=0
    on "$slurm" bash "$clusters/slurm/train.sbatch" >"$here/out" 2>&1 || status=$?
    requeued="$(cat "$here/scontrol" 2>/dev/null || true)"
    { [ "$status" = "${case#*:}" ] && [ "$requeued" = "$([ "$case" != 75:0 ] || echo requeue 812)" ]; } ||
        wrong "train.sbatch: after ${case%:*}: exit status $status, scontrol: $requeued"
done
exit "$bad"
