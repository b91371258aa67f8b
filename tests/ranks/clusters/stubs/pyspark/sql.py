from . import SparkContext


class SparkSession:
    sparkContext = SparkContext()

    class builder:
        @staticmethod
        def appName(name):
            assert name
            return SparkSession.builder

        @staticmethod
        def getOrCreate():
            return SparkSession
