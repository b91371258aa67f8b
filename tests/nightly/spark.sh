#!/bin/sh
# spark.sh <repository> <build folder>: examples/clusters/spark on a Spark cluster of two hosts.
# shellcheck disable=SC2086 # options of a launcher are words
set -eu
# shellcheck source=tests/nightly/common.sh
. "$(dirname "$0")/common.sh"
need java default-jre-headless
packages spark pyspark
enter "$@"
make_hosts n1 n2
small_gpt2 300
SPARK_HOME="$(echo "$environment"/lib/python3*/site-packages/pyspark)"
export SPARK_HOME SPARK_LOG_DIR="$here" SPARK_LOCAL_DIRS="$here" HOME="$here" PATH="$environment/bin:$PATH"
export ZERO_LOG=info PYSPARK_PYTHON="$environment/bin/python3"

"$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.master.Master --host 10.88.0.254 --port 7077 \
    >"$here/master" 2>&1 &
for host in n1 n2; do
    SPARK_LOCAL_IP="$host" on "$host" "$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.worker.Worker \
        --cores 2 --memory 1g --work-dir "$here/work" spark://10.88.0.254:7077 >"$here/worker.$host" 2>&1 &
done
logs="$here/master $here/worker.n1"
workers() { [ "$(grep -c 'Registering worker' "$here/master")" = 2 ]; }
await "two workers" 60 workers
ranks() {
    SPARK_LOCAL_IP=10.88.0.254 timeout -k 5 120 spark-submit --master spark://10.88.0.254:7077 \
        --conf spark.executor.memory=512m --conf spark.executor.cores=2 \
        "$repository/examples/clusters/spark/spark_ranks.py" "$@" >"$here/got" 2>&1
}

train="gpt2 --stage 3 --micro-batches 16 --data $here/text --checkpoint $here/checkpoints --resume auto"
saved() { ls -d "$here/checkpoints/step-"*; }
said() { cat "$here"/work/*/*/std*; }

step "four ranks on two hosts, one of whose executors dies"
network slow
ranks 4 $train --save-every 10 &
ranks=$!
await "a checkpoint" 90 saved
kill -KILL "$(pgrep -f CoarseGrainedExecutorBackend | head -n 1)"
network fast
wait "$ranks" || fail "spark_ranks.py"
said | grep -q 'rank 0 of 4, .*transport tcp' || fail "not 4 ranks by tcp"
said | grep -q 'gpt2: rank [0-9] died on n[12]' || fail "no rank says which one has died"
said | grep -q 'resumed at step' || fail "started anew, or not again"
said | grep -q "$undisturbed" || fail "not \"$undisturbed\""

step "ranks fail: they are started again, RESTARTS times"
failing_ranks
status=0
RESTARTS=1 ranks 2 "$here/fails" "$here/starts" || status=$?
[ "$status" = 9 ] || fail "exit status $status, should be 9"
[ "$(wc -l <"$here/starts")" = 2 ] || fail "not started twice"
