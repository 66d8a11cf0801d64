//! `keel demo`: the bundled fire trace, alone or with a full node.

use crate::error::CliError;
use crate::mem_cmd;
use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel demo                                 300 s of trace at 10x: half a minute, live view\n  \
    keel demo --seconds 60 --speed 20         a short run\n  \
    keel demo --headless --json > demo.json   figures for a program\n  \
    keel demo --kill                          SIGKILL the writer at random moments\n  \
    keel demo --full --speed 20               every part of a node, a power cut, and a check of each promise\n  \
    keel demo --dir /mnt/card                 on the flash that you want to test\n\n\
    The store takes 256 MiB. Without --dir it is in a temporary directory (TMPDIR, else /var/tmp) and is removed at\n\
    the end. Press q to stop the live view. Exit status 1 if an acknowledged reading is missing or altered.\n\n\
    --full says of each promise whether it was kept, and why (exit status 1: one was not). What this machine does\n\
    not permit is `not shown`, and no failure: programs from the network need FUSE, and files in memory need\n\
    libkeelmem.so, where `keel mem run` looks for it, too. The package evenkeel has it beside keel, in ../lib/keel;\n\
    `cargo build --release -p keel -p mem-preload` builds both. There is none for armhf.\n\n\
    Keys of --json, counts of the whole run unless said otherwise:\n  \
    readings_offered, _acknowledged           offered to the database; known to the parent to be on flash\n  \
    readings_missing, _altered, _unexpected   in the reopened store: lost, changed, never offered\n  \
    readings_offered_again                    offers repeated to a restarted writer\n  \
    table_stale, tables_compared              sensors without their newest acknowledged value; recovered tables\n  \
    task_instances, deadline_misses           instances of the analysis task that ended; that ended late\n  \
    releases_missed                           releases of the task without an instance of their own\n  \
    tardiness_mean                            response time / deadline, mean over instances\n  \
    fresh_mean                                share of objects that are fresh, mean over reports\n  \
    append_latency_us                         flash append to durable return: p50, p99, p999, max, count\n  \
    put_durable_us                            first try of a put to its completed ticket: as above\n  \
    task_response_us                          release to end of an instance: as above\n  \
    device_writes, _flushes, _blocks_written  from the first reading to the closed store\n  \
    setup_device_writes, _flushes             before the first reading: format, recovery, declarations\n  \
    device_direct                             whether the device bypasses the page cache\n  \
    seconds, trace_seconds, trace_passes      time taken; trace time replayed; passes through the trace\n  \
    speed, stopped_early, image, seed         as asked for, or null\n  \
    kills, kills_with_open_tickets            SIGKILLs; those with a reading put but not acknowledged\n  \
    kills_during_recovery                     those before the writer was ready\n  \
    kills_after_acknowledgement               those at most 5 ms after an acknowledgement arrived\n  \
    recoveries, recovery_ms_mean, _max        restarts that found a store, and how long they took\n  \
    downtime_seconds, reopen_ms               time without a writer; time of the comparison at the end\n  \
    log_segments                              files of the log at the end\n  \
    log_damaged, log_readings_missing         according to the log's checksums and numbers, at the end\n  \
    records_damaged                           damaged log records that restarted writers found\n  \
    failures                                  reasons for exit status 1; empty if it is 0")]
pub(crate) struct DemoArgs {
    #[command(flatten)]
    demo: demo::Args,
    /// Run a full node (programs from a mount, region, job, upstream), with a power cut in the middle
    #[arg(long, conflicts_with_all = ["kill", "headless"])]
    full: bool,
}

/// Runs the demo. Returns the exit status.
pub(crate) fn run(arguments: &DemoArgs) -> Result<u8, CliError> {
    if !arguments.full {
        return demo::run(&arguments.demo);
    }
    let no_library = mem_cmd::library().err().map(|error| error.to_string());
    demo::run_full(&arguments.demo, no_library)
}
