use super::urgent::BrokerFigures;
use super::*;

/// Returns a healthy node that has run for an hour: 260 readings per second, a broker, a clock.
pub(super) fn well() -> NodeFigures {
    let readings = 260 * 3600;
    NodeFigures {
        node: ProcessFigures {
            version: "0.1.0".to_owned(),
            pid: 4242,
            uptime_ms: 3_600_000,
            memory_resident_bytes: 12 << 20,
            config_file: "keel.toml".to_owned(),
            ..ProcessFigures::default()
        },
        store: StoreFigures {
            image: "keel-data/store.img".to_owned(),
            capacity_bytes: 250 << 20,
            free_bytes: 190 << 20,
            direct: true,
            full: false,
            card_rated_write_terabytes: 30.0,
        },
        log: LogFigures {
            readings_taken: readings + 20,
            readings_durable: readings,
            readings_outstanding: 20,
            queue_bytes: 900,
            queue_bytes_max: 1 << 20,
            durable_lag_ms: 110.0,
            commit_interval_ms: 250,
            replay_bytes: 1_500_000,
            table_checkpoint_bytes: 260 * 176,
            put_durable_us: Latency {
                count: readings,
                p50: 128_000.0,
                p99: 251_000.0,
                p999: 260_000.0,
                max: 812_000.0,
            },
            append_us: Latency {
                count: 14_400,
                p50: 900.0,
                p99: 4_100.0,
                p999: 9_000.0,
                max: 561_000.0,
            },
            ..LogFigures::default()
        },
        history: HistoryFigures {
            segments: 15,
            bytes: 58 << 20,
            bytes_max: 225 << 20,
            days_max: 0,
            full_policy: "reject-new".to_owned(),
            readings_expired: 12_000,
            readings_dropped: 0,
        },
        keys: KeyFigures {
            count: 260,
            count_max: 4096,
            name_bytes: 260 * 32,
            name_bytes_max: 4096 * 64,
            auto_create: true,
            ..KeyFigures::default()
        },
        intake: IntakeFigures {
            readings: readings + 20,
            readings_shed: 7,
            messages: readings,
            lines: 20,
            retained_taken: 4,
            retained_skipped: 2,
            refused_total: 3,
            refused: [("json_invalid".to_owned(), 3), ("keys_max".to_owned(), 0)].into(),
            refused_last: [("json_invalid".to_owned(), "{\"t\": }".to_owned())].into(),
            ..IntakeFigures::default()
        },
        mqtt: Some(MqttFigures {
            address: "127.0.0.1:1883".to_owned(),
            connected: true,
            subscriptions_wanted: 2,
            subscriptions_held: 2,
            connects: 1,
            messages: readings,
            acknowledged: readings,
            in_flight: 20,
            ..MqttFigures::default()
        }),
        line: LineState {
            listen: vec!["127.0.0.1:8094".to_owned()],
            connections: 1,
            lines: 20,
            ..LineState::default()
        },
        commands: CommandFigures {
            socket: "keel-data/keel.sock".to_owned(),
            connections: 1,
            requests: 33,
            ..CommandFigures::default()
        },
        clock: ClockFigures {
            trusted: true,
            steps: 0,
        },
        device: DeviceFigures {
            bytes_written: 180_000_000,
            flushes: 14_500,
            reads: 900,
            writes: 29_000,
        },
        flash: FlashFigures {
            operations: 43_500,
            operations_bound: 120_000,
            operations_per_reading: Some(0.05),
            operations_per_reading_bound: Some(0.13),
        },
        last_minute: Delta {
            span_ms: 60_000,
            readings: 15_600,
            ..Delta::default()
        },
        last_ten_minutes: Delta {
            span_ms: 600_000,
            bytes_written: 29_000_000,
            readings: 156_000,
            ..Delta::default()
        },
        lifetime: Totals {
            starts: 7,
            bytes_written: 1_200_000_000_000,
            ..Totals::default()
        },
        shedding: false,
        upstream: vec![UpstreamFigures {
            name: "cloud".to_owned(),
            kind: "mqtt".to_owned(),
            address: "192.168.1.10:1883".to_owned(),
            connected: true,
            connects: 1,
            backlog_readings: 12,
            backlog_age_ms: Some(80),
            in_flight: 10,
            sent: readings,
            acknowledged: readings - 12,
            ..UpstreamFigures::default()
        }],
        urgent: UrgentFigures {
            brokers: vec![BrokerFigures {
                name: "local".to_owned(),
                address: "127.0.0.1:1883".to_owned(),
                connected: true,
                connects: 1,
                ..BrokerFigures::default()
            }],
            alarms: vec![AlarmFigures {
                name: "hot".to_owned(),
                pattern: "hall/+/temperature".to_owned(),
                condition: "above 60, over at 55".to_owned(),
                watched: 12,
                ..AlarmFigures::default()
            }],
            actuators: vec![urgent::ActuatorFigures {
                name: "valve".to_owned(),
                pattern: "valve/1".to_owned(),
                ..Default::default()
            }],
            ..UrgentFigures::default()
        },
        qos: QosState {
            model_true: true,
            obeyed: true,
            ..QosState::default()
        },
        region: Some(RegionFigures {
            file: "/dev/shm/keel".to_owned(),
            table: "keel-latest".to_owned(),
            served: true,
            capacity_bytes: 64 << 20,
            free_bytes: 40 << 20,
            checkpoint_image: Some("region.img".to_owned()),
            checkpoint_interval_seconds: 60,
            checkpoint_generation: 7,
            checkpoints: 6,
            loss_window_seconds: Some(12.5),
            ..RegionFigures::default()
        }),
        ..NodeFigures::default()
    }
}

fn region(figures: &mut NodeFigures) -> &mut RegionFigures {
    figures.region.as_mut().unwrap()
}

/// Returns the codes of a healthy node with one change.
fn codes(change: impl FnOnce(&mut NodeFigures)) -> (State, Vec<String>) {
    let mut figures = well();
    change(&mut figures);
    let Judgement { state, reasons } = judge(&figures);
    assert_eq!(state == State::Ok, reasons.is_empty());
    for reason in &reasons {
        assert!(CODES.iter().any(|(code, _)| *code == reason.code));
        assert!(!reason.text.is_empty() && !reason.text.contains('\n'));
    }
    (
        state,
        reasons.into_iter().map(|reason| reason.code).collect(),
    )
}

fn degraded(code: &str, change: impl FnOnce(&mut NodeFigures)) {
    assert_eq!(
        codes(change),
        (State::Degraded, vec![code.to_owned()]),
        "{code}"
    );
}

fn fine(change: impl FnOnce(&mut NodeFigures)) {
    assert_eq!(codes(change), (State::Ok, vec![]));
}

#[test]
fn a_node_that_is_well_is_ok() {
    fine(|_| {});
    // Bad input is the sender's fault; it is shown, but does not degrade the node.
    fine(|f| f.intake.refused_total = 1_000_000);
    // No broker is configured.
    fine(|f| f.mqtt = None);
    // Retention by a configured limit is intended.
    fine(|f| f.history.readings_expired = 1_000_000);
    // A refusal of an hour ago is counted, but over.
    fine(|f| {
        (
            f.log.refused_busy,
            f.log.refused_full,
            f.history.readings_dropped,
            f.listeners_failed,
        ) = (5, 5, 5, 5)
    });
    fine(|f| f.listener_error = Some("too many open files".to_owned()));
}

#[test]
fn each_reason_shows_in_the_report() {
    degraded("shedding", |f| f.shedding = true);
    let task = crate::status::TaskState::default;
    let late = crate::status::PeriodState {
        instances: 10,
        miss_ratio: 0.2,
        ..Default::default()
    };
    degraded("deadlines_missed", |f| {
        (f.qos.tasks, f.qos.last) = (vec![task()], Some(late));
    });
    degraded("deadlines_missed", |f| {
        f.last_minute.deadline_misses_apart = 1
    });
    degraded("qos_at_limit", |f| f.qos.saturated = true);
    let held = |f: &mut NodeFigures, speed: &str, admitted: &str| {
        f.qos.saturated = true;
        f.qos.speed_held = speed.to_owned();
        f.qos.admitted_held = admitted.to_owned();
    };
    degraded("qos_at_limit", |f| held(f, "high", "low"));
    // Tasks that meet their deadlines at the least speed, with all updates, need no attention.
    fine(|f| held(f, "low", "high"));
    degraded("qos_blind", |f| {
        (f.qos.tasks, f.qos.blind, f.qos.periods) = (vec![task()], true, 9);
    });
    degraded("task_silent", |f| {
        f.qos.tasks = vec![crate::status::TaskState {
            silent: true,
            ..task()
        }];
    });
    degraded("task_slow", |f| {
        f.qos.mode = "mimo".to_owned();
        f.qos.tasks = vec![crate::status::TaskState {
            slow: true,
            ..task()
        }];
    });
    degraded("qos_model_wrong", |f| {
        (f.qos.model_true, f.qos.periods) = (false, 9);
    });
    degraded("qos_speed_failing", |f| {
        (f.qos.obeyed, f.qos.periods) = (false, 9);
    });
    degraded("qos_speed_left", |f| {
        f.qos.settings_left = vec!["x".to_owned()];
    });
    degraded("qos_gains_unusable", |f| {
        f.qos.gains_error = Some("it is none".to_owned());
    });
    degraded("dropping", |f| f.last_minute.readings_dropped = 1);
    degraded("dropping", |f| f.last_minute.refused_full = 1);
    degraded("store_full", |f| f.store.full = true);
    degraded("lagging", |f| f.last_minute.refused_busy = 1);
    degraded("log_damaged", |f| f.log.records_damaged = 1);
    degraded("log_damaged", |f| f.log.pieces_unreadable = 1);
    degraded("log_damaged", |f| f.log.files_unreadable = 1);
    degraded("log_damaged", |f| f.log.readings_missing = 1);
    degraded("checkpoint_failing", |f| f.log.checkpoint_failing = true);
    let quarter = well().store.capacity_bytes / 4;
    fine(|f| f.log.table_checkpoint_bytes = quarter);
    degraded("table_large", |f| {
        f.log.table_checkpoint_bytes = quarter + 1
    });
    degraded("history_failing", |f| {
        f.history_failing = Some("x".to_owned())
    });
    degraded("listener_failed", |f| f.last_minute.listeners_failed = 1);
    degraded("source_ended", |f| f.sources_ended = vec!["x".to_owned()]);
    degraded("connections_max", |f| f.last_minute.connections_refused = 1);
    degraded("connections_max", |f| {
        f.last_minute.connections_made_room = 1
    });
    degraded("key_shared", |f| f.last_minute.refused_key_shared = 1);
    degraded("region_unusable", |f| {
        region(f).error = Some("x".to_owned())
    });
    degraded("job_failing", |f| {
        f.jobs = vec![JobFigures {
            failing: true,
            ..JobFigures::default()
        }]
    });
    // A job that failed once and succeeds again is counted, but is no reason.
    fine(|f| {
        f.jobs = vec![JobFigures {
            runs: 9,
            failed: 3,
            skipped: 2,
            late: 1,
            last_error: Some("x".to_owned()),
            ..JobFigures::default()
        }]
    });
    programs_that_do_not_run_are_a_reason();
    degraded("region_checkpoint_failing", |f| {
        region(f).checkpoint_failing = true
    });
    fine(|f| f.region = None);
    // A checkpoint that failed once and succeeded since is counted, but over.
    fine(|f| region(f).checkpoint_error = Some("x".to_owned()));
    fine(|f| region(f).checkpoints_failed = 3);
    degraded("clock_untrusted", |f| f.clock.trusted = false);
    degraded("config_refused", |f| {
        f.node.config_error = Some("x".to_owned())
    });
    degraded("config_pending_restart", |f| {
        f.node.config_pending_restart.push("store.image".to_owned());
    });
    let mqtt = |f: &mut NodeFigures| f.mqtt.take().unwrap();
    degraded("mqtt_disconnected", |f| {
        f.mqtt = Some(MqttFigures {
            connected: false,
            ..mqtt(f)
        })
    });
    degraded("upstream_disconnected", |f| {
        f.upstream[0].connected = false;
        f.upstream[0].last_error = Some("connection refused".to_owned());
    });
    degraded("upstream_cursor", |f| {
        f.upstream[0].cursor_error = Some("the store is full".to_owned());
    });
    degraded("upstream_cursor", |f| f.upstream[0].cursor_was_lost = true);
    degraded("http_unusable", |f| {
        f.http_unusable = Some("tokens: no such file".to_owned())
    });
    degraded("http_certificate", |f| {
        f.http = Some(egress::http::HttpFigures {
            certificate_error: Some("h.key: is not there; name the right file".to_owned()),
            ..egress::http::HttpFigures::default()
        });
    });
    degraded("upstream_unusable", |f| {
        f.upstream[0].unusable = Some("the cursor has version 9".to_owned());
    });
    degraded("upstream_behind", |f| {
        f.upstream[0].backlog_readings = 3;
        f.upstream[0].backlog_age_ms = Some(120_001);
    });
    degraded("upstream_behind", |f| {
        // The age of the readings is unknown.
        f.upstream[0].backlog_readings = 3;
        f.upstream[0].backlog_age_ms = None;
        f.upstream[0].unmoved_ms = 120_001;
    });
    fine(|f| {
        f.upstream[0].backlog_readings = 3;
        f.upstream[0].backlog_age_ms = Some(120_001);
        f.upstream[0].linger_ms = 60_000;
    });
    fine(|f| {
        f.upstream[0].backlog_readings = 0;
        f.upstream[0].unmoved_ms = 120_001;
    });
    degraded("upstream_lost", |f| f.last_ten_minutes.forward_lost = 1);
    degraded("upstream_refused", |f| {
        f.last_ten_minutes.forward_refused = 1
    });
    fine(|f| {
        // The upstream has not been contacted yet.
        f.upstream[0].connected = false;
        f.upstream[0].connects = 0;
        f.upstream[0].backlog_readings = 0;
    });
    degraded("broker_disconnected", |f| {
        f.urgent.brokers[0].connected = false;
    });
    degraded("broker_disconnected", |f| {
        f.urgent.brokers[0].waiting_age_ms = Some(10_001);
    });
    degraded("alarm_undelivered", |f| {
        f.last_ten_minutes.alarms_undelivered = 1
    });
    degraded("alarm_undelivered", |f| {
        f.urgent.urgent_error = Some("no thread".to_owned())
    });
    degraded("actuator_undelivered", |f| {
        f.last_ten_minutes.actuators_undelivered = 1
    });
    degraded("alarm_unwatched", |f| f.urgent.alarms[0].unwatched = 1);
    degraded("alarm_unwatched", |f| f.urgent.actuators[0].keys_unused = 1);
    // An alarm is about the monitored process, not about the node.
    fine(|f| f.urgent.alarms[0].active = 3);
    fine(|f| {
        f.urgent.brokers[0].connected = false;
        f.urgent.brokers[0].connects = 0;
    });
    degraded("intake_refused", |f| {
        (
            f.last_ten_minutes.refused_input,
            f.last_ten_minutes.taken_input,
        ) = (3, 0);
    });
    // Bad input is the senders' fault, unless no other input arrives.
    fine(|f| {
        (
            f.last_ten_minutes.refused_input,
            f.last_ten_minutes.taken_input,
        ) = (1_000_000, 1)
    });
    // Nor does bad input matter when there is no room for good input.
    degraded("dropping", |f| {
        f.last_minute.refused_full = 5;
        (
            f.last_ten_minutes.refused_input,
            f.last_ten_minutes.refused_full,
        ) = (3, 5);
    });
    degraded("task_leftover", |f| f.task_leftover = Some("x".into()));
    fine(|f| {
        (
            f.last_ten_minutes.refused_input,
            f.last_ten_minutes.taken_input,
        ) = (2, 0)
    });
    degraded("mqtt_refused", |f| {
        f.mqtt = Some(MqttFigures {
            subscriptions_refused: 1,
            ..mqtt(f)
        })
    });
    degraded("mqtt_unanswered", |f| {
        f.mqtt.as_mut().unwrap().subscriptions_unanswered = 1;
    });
}

#[test]
fn a_failed_checkpoint_is_reported_with_reason_and_remedy() {
    let said = |why: &str| {
        let mut figures = well();
        figures.log.checkpoint_failing = true;
        figures.log.checkpoint_error = Some(why.to_owned());
        let report = Report::new(figures);
        assert!(
            report.text().contains("a start would read 1.4 MiB of it"),
            "{}",
            report.text()
        );
        report.reasons[0].text.clone()
    };
    let text = said("no_room");
    for part in ["of up to 44.7 KiB", "1.4 MiB of log", "keel flash grow"] {
        assert!(text.contains(part), "{text}");
    }
    let text = said("table_spoilt");
    assert!(text.contains("start the node again"), "{text}");
    let text = table_large(90 << 20, 160 << 20).unwrap();
    for part in ["90.0 MiB", "160.0 MiB", "more than half", "fewer keys"] {
        assert!(text.contains(part), "{text}");
    }
}

fn programs_that_do_not_run_are_a_reason() {
    let task = |change: fn(&mut TaskFigures)| {
        move |f: &mut NodeFigures| {
            let mut task = TaskFigures {
                name: "valve".to_owned(),
                ..TaskFigures::default()
            };
            change(&mut task);
            f.tasks = vec![task];
        }
    };
    degraded("task_failing", task(|task| task.failing = true));
    degraded(
        "task_failing",
        task(|task| "given_up".clone_into(&mut task.state)),
    );
    degraded(
        "task_failing",
        task(|task| task.declare_error = Some("x".to_owned())),
    );
    degraded("task_failing", task(|task| task.cores_refused = true));
    // A task that ended once and runs well is counted, but over.
    fine(task(|task| {
        (task.failed, task.restarts) = (3, 3);
        task.last_error = Some("x".to_owned());
    }));
    let mount = |failing| {
        move |f: &mut NodeFigures| {
            f.mounts = vec![MountFigures {
                failing,
                last_error: Some("x".to_owned()),
                ..MountFigures::default()
            }];
        }
    };
    degraded("mount_failing", mount(true));
    fine(mount(false));
    let connected = |connections| {
        move |f: &mut NodeFigures| f.mounts = vec![MountFigures::streaming(connections)]
    };
    degraded("mount_disconnected", connected(Some(0)));
    // The state is unknown until the mount's process has sent its first figures.
    fine(connected(None));
    fine(connected(Some(1)));
}

#[test]
fn the_page_for_operators_explains_every_reason() {
    let page = include_str!("../../../../docs/operate.md");
    let refusals = ingest::intake::Reason::ALL.map(|reason| reason.name());
    for code in CODES.iter().map(|(code, _)| *code).chain(refusals) {
        assert!(page.contains(&format!("\n| `{code}` | ")), "{code}");
    }
}

#[test]
fn a_lag_is_one_from_some_intervals_on() {
    fine(|f| f.log.durable_lag_ms = 1_000.0);
    degraded("lagging", |f| f.log.durable_lag_ms = 1_000.1);
    fine(|f| (f.log.durable_lag_ms, f.log.commit_interval_ms) = (40_000.0, 10_000));
    degraded("lagging", |f| {
        (f.log.durable_lag_ms, f.log.commit_interval_ms) = (40_001.0, 10_000)
    });
    // With a short interval, an ordinary stall of a card does not count as a lag.
    fine(|f| (f.log.durable_lag_ms, f.log.commit_interval_ms) = (999.0, 1));
    fine(|f| f.log.queue_bytes = 1 << 19);
    degraded("lagging", |f| f.log.queue_bytes = (1 << 19) + 1);
}

#[test]
fn keys_are_short_only_when_some_were_refused() {
    fine(|f| f.keys.count = 4096);
    fine(|f| f.last_minute.refused_keys_max = 2);
    degraded("keys_max", |f| {
        f.last_minute.refused_keys_max = 2;
        f.keys.count = 4096;
    });
    // Their names are as long as they may be: no room is left for a longest one.
    fine(|f| f.keys.name_bytes = f.keys.name_bytes_max);
    fine(|f| {
        f.last_minute.refused_keys_max = 2;
        f.keys.name_bytes = f.keys.name_bytes_max - 256;
    });
    degraded("keys_max", |f| {
        f.last_minute.refused_keys_max = 2;
        f.keys.name_bytes = f.keys.name_bytes_max - 240;
    });
}

#[test]
fn refusals_stop_counting_after_a_minute() {
    let mut figures = well();
    figures.keys.count = 4096;
    figures.node.uptime_ms = 0;
    let mut window = Window::new(figures.sample());
    let mut codes_at = |uptime_ms: u64, refused: u64, failed: u64| {
        figures.node.uptime_ms = uptime_ms;
        figures
            .intake
            .refused
            .insert("keys_max".to_owned(), refused);
        figures.listeners_failed = failed;
        let sample = figures.sample();
        figures.last_minute = window.last_minute(&sample);
        window.offer(sample);
        judge(&figures)
            .reasons
            .into_iter()
            .map(|reason| reason.code)
            .collect::<Vec<_>>()
    };
    assert!(codes_at(5_000, 0, 0).is_empty());
    assert_eq!(codes_at(10_000, 2, 0), ["keys_max"]);
    assert_eq!(codes_at(40_000, 2, 3), ["keys_max", "listener_failed"]);
    assert_eq!(codes_at(80_000, 2, 3), ["listener_failed"]);
    assert!(codes_at(110_000, 2, 3).is_empty());
}

#[test]
fn failures_are_named_in_the_text_and_in_the_json_form() {
    let mut figures = well();
    figures.history_failing = Some("index-7 cannot be written".to_owned());
    figures.listener_error = Some("127.0.0.1:8094: too many open files".to_owned());
    figures.last_minute.listeners_failed = 4;
    let report = Report::new(figures);
    let text = report.text();
    assert!(text.contains("(index-7 cannot be written)"), "{text}");
    assert!(
        text.contains("4 times") && text.contains("(127.0.0.1:8094: too many open files)"),
        "{text}"
    );
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["history_failing"], "index-7 cannot be written");
    assert_eq!(json["listeners_failed"], 0);
    assert_eq!(json["reasons"][0]["code"], "history_failing");
    let json = serde_json::to_value(Report::new(well())).unwrap();
    assert!(json["history_failing"].is_null() && json["listener_error"].is_null());
}

#[test]
fn data_that_a_power_cut_would_take_are_shown() {
    let shown = |change: fn(&mut RegionFigures)| {
        let mut figures = well();
        change(region(&mut figures));
        let text = Report::new(figures).text();
        let mut lines = text.lines().skip_while(|line| !line.starts_with("region"));
        format!("{}\n{}", lines.next().unwrap(), lines.next().unwrap())
    };
    assert_eq!(
        shown(|_| {}),
        "region    /dev/shm/keel, 40.0 MiB free of 64.0 MiB; values in keel-latest\n          \
         checkpoint 7 in region.img: a power cut would take what was written in the last 12 s"
    );
    assert!(
        shown(|it| it.checkpoint_failing = true)
            .ends_with("the last 12 s, and the last try FAILED")
    );
    let none = "a power cut would take all of it";
    assert!(shown(|it| it.loss_window_seconds = None).ends_with(none));
    assert!(shown(|it| it.checkpoint_image = None).ends_with(&format!("no checkpoints: {none}")));
    assert!(shown(|it| it.error = Some("x".to_owned())).contains("; NOT USED"));
    let json = serde_json::to_value(Report::new(well())).unwrap();
    assert_eq!(json["region"]["loss_window_seconds"], 12.5);
}

#[test]
fn a_failed_log_is_a_failed_node_beside_other_reasons() {
    for failure in ["device", "full", "closed"] {
        let (state, reasons) = codes(|f| {
            f.log.failed = Some(failure.to_owned());
            f.clock.trusted = false;
        });
        assert_eq!(state, State::Failed);
        assert_eq!(reasons, ["log_failed", "clock_untrusted"]);
    }
    let statuses = [State::Ok, State::Degraded, State::Failed].map(State::exit_status);
    assert_eq!(statuses, [0, 3, 1]);
}

#[test]
fn wear_is_computed_from_the_counters() {
    let figures = well();
    let wear = Wear::of(&figures);
    let near = |found: Option<f64>, expected: f64| {
        let found = found.unwrap();
        assert!((found / expected - 1.0).abs() < 1e-9, "{found} {expected}");
    };
    near(wear.bytes_per_reading, 180_000_000.0 / 936_000.0);
    near(wear.flushes_per_reading, 14_500.0 / 936_000.0);
    near(wear.gigabytes_per_day, 0.18 * 24.0);
    near(wear.gigabytes_per_day_recent, 0.029 * 144.0);
    near(Some(wear.card_written_terabytes), 1.2);
    near(wear.card_years_left, 28_800.0 / 4.32 / 365.25);
    // A card beyond its rating has no years left.
    let mut worn = well();
    worn.lifetime.bytes_written = 31_000_000_000_000;
    assert_eq!(Wear::of(&worn).card_years_left, Some(0.0));
}

#[test]
fn unknown_figures_are_left_out() {
    let mut young = well();
    young.node.uptime_ms = 59_999;
    young.last_ten_minutes.span_ms = 59_999;
    young.log.readings_durable = 0;
    let wear = Wear::of(&young);
    assert_eq!(wear.bytes_per_reading, None);
    assert_eq!(wear.flushes_per_reading, None);
    assert_eq!(wear.gigabytes_per_day, None);
    assert_eq!(wear.gigabytes_per_day_recent, None);
    assert_eq!(wear.card_years_left, None);
    let mut figures = well();
    figures.node.uptime_ms = 599_999;
    assert!(Wear::of(&figures).gigabytes_per_day.is_some());
    assert_eq!(Wear::of(&figures).card_years_left, None);
    let mut idle = well();
    idle.device.bytes_written = 0;
    assert_eq!(Wear::of(&idle).card_years_left, None);
    let mut unrated = well();
    unrated.store.card_rated_write_terabytes = 0.0;
    let wear = Wear::of(&unrated);
    assert_eq!(
        (wear.card_rated_terabytes, wear.card_years_left),
        (None, None)
    );
    let text = Report::new(unrated).text();
    assert!(text.contains("its rating is unknown"), "{text}");
}

#[test]
fn the_window_knows_its_spans_and_stays_small() {
    let at = |seconds: u64| Sample {
        uptime_ms: seconds * 1000,
        bytes_written: seconds * 10,
        flushes: seconds,
        readings: seconds * 2,
        ..Sample::default()
    };
    let mut window = Window::new(at(0));
    let begun = window.last_minute(&at(7));
    assert_eq!((begun.span_ms, begun.bytes_written), (7_000, 70));
    for seconds in 1..=5_000 {
        window.offer(at(seconds));
        let minute = window.last_minute(&at(seconds));
        let ten = window.last_ten_minutes(&at(seconds));
        let least = |span: u64| span.min(seconds) * 1000;
        assert!(
            (least(60)..least(60) + 5_001).contains(&minute.span_ms),
            "{seconds} {minute:?}"
        );
        assert!(
            (least(600)..least(600) + 5_001).contains(&ten.span_ms),
            "{seconds} {ten:?}"
        );
        assert_eq!(ten.flushes * 1000, ten.span_ms);
    }
    let mut sample = at(5_001);
    sample.readings_dropped = 3;
    assert_eq!(window.last_minute(&sample).readings_dropped, 3);
    assert!(std::mem::size_of::<Sample>() * 123 < 21 << 10);
    assert!(format!("{window:?}").matches("uptime_ms").count() <= 123);
}

#[test]
fn the_first_line_is_the_state_and_why() {
    let text = Report::new(well()).text();
    println!("{text}");
    assert_eq!(text.lines().next(), Some("ok"));
    let mut figures = well();
    figures.clock.trusted = false;
    figures.last_minute.readings_dropped = 3;
    figures.last_minute.refused_full = 4;
    let text = Report::new(figures).text();
    println!("{text}");
    assert_eq!(
        text.lines().next(),
        Some("degraded: dropping, clock_untrusted")
    );
    assert_eq!(text.matches("\n  dropping ").count(), 2);
    assert!(text.lines().all(|line| !line.ends_with(' ')), "{text}");
}

#[test]
fn the_json_form_comes_back_and_later_nodes_are_understood() {
    let report = Report::new(well());
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["state"], "ok");
    assert_eq!(json["log"]["readings_durable"], 936_000);
    assert_eq!(json["wear"]["card_rated_terabytes"], 30.0);
    let back: Report = serde_json::from_value(json.clone()).unwrap();
    assert_eq!(back, report);
    let mut later = json;
    later["new"] = serde_json::json!({"figure": 1});
    later["log"]["new"] = serde_json::json!(1);
    assert_eq!(serde_json::from_value::<Report>(later).unwrap(), report);
    // An empty answer must not count as a healthy state.
    let empty: Report = serde_json::from_str("{}").unwrap();
    assert_eq!(empty.state, State::Failed);
}
