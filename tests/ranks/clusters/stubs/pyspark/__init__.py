"""As much of Spark as examples/clusters/spark uses: a barrier task is a thread of this process."""
import threading

_here = threading.local()


class _TaskInfo:
    address = "127.0.0.1:40000"


class BarrierTaskContext:
    def __init__(self, stage, partition):
        self.stage, self.partition = stage, partition

    @staticmethod
    def get():
        return _here.context

    def partitionId(self):
        return self.partition

    def getTaskInfos(self):
        return [_TaskInfo()] * self.stage.tasks

    def allGather(self, message):
        assert isinstance(message, str)
        self.stage.messages[self.partition] = message
        self.stage.barrier.wait()
        return [self.stage.messages[i] for i in range(self.stage.tasks)]


class _Stage:
    def __init__(self, tasks, function=None):
        self.tasks, self.function = tasks, function
        self.messages, self.barrier = {}, threading.Barrier(tasks)

    def run(self, partition, results):
        _here.context = BarrierTaskContext(self, partition)
        results[partition] = list(self.function(iter([partition])))

    def collect(self):
        results = {}
        threads = [threading.Thread(target=self.run, args=(i, results)) for i in range(self.tasks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [value for i in range(self.tasks) for value in results[i]]


class _Data:
    def __init__(self, tasks):
        self.tasks = tasks

    def barrier(self):
        return self

    def mapPartitions(self, function):
        return _Stage(self.tasks, function)


class SparkContext:
    def parallelize(self, values, partitions):
        assert len(values) == partitions
        return _Data(partitions)
