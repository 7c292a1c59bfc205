"""The data pipelines: what the broker's log holds, kept, counted, explained, and put to use, on Spark.

archive     the log into Parquet files               reconcile   does everything published have an end?
metrics     rates, times and backlogs; a report      compact     fewer, larger files; retention
triage      dead letters in groups; a report         alerts      what needs somebody's attention, into a queue
redrive     dead letters back, by triage's groups    load        any table or file into a queue
replay      archived messages published again

Each is one file, a command (`smista pipeline NAME`), a program for spark-submit, and a function. Around them:

command     options, exit codes                      rows        what a row of the log is, where rows come from
run         Spark, once or on and on                 lifecycle   rows of one message put together
summary     what is printed at the end               manifests   the archive's folder
report      pages with plots                         tables      small tables that are replaced whole

The work is done by Spark's own operations on columns; no message passes through Python, but for redrive, which hands
ids to the broker by the thousand.
"""
