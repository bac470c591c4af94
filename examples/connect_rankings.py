"""Rank a farm on a Spark Connect server: connect_rankings.py REMOTE NODE FARM USER PASSWORD_FILE DIRECTORY"""

import sys

from pyspark.sql import SparkSession

from garlicfarm_plugin_spark import rankings


def main(remote: str, node: str, farm: str, user: str, password_file: str, directory: str) -> None:
    spark = SparkSession.builder.remote(remote).getOrCreate()
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    entries = (
        spark.readStream.format("garlicfarm")
        .option("url", node)
        .option("farm", farm)
        .option("user", user)
        .option("passwordFile", password_file)
        .option("startingIndex", "state")
        .load()
    )
    query = (
        rankings(entries)
        .writeStream.format("parquet")
        .option("path", f"{directory}/rankings")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    ranked = spark.read.parquet(f"{directory}/rankings").orderBy("log_index")
    for row in ranked.select("log_index", "publisher", "ranking").collect():
        print(row["log_index"], row["publisher"], row["ranking"])


if __name__ == "__main__":
    main(*sys.argv[1:])
