//! Settings of a running engine, queried and changed by requests as on the control socket.

use crate::common::{Setup, World};
use softswap_engine::api::control_protocol::{
    Answer, MAX_ANSWER_BYTES, Snapshot, carry_out, reply_to,
};
use softswap_engine::api::live_settings::LIVE_SETTINGS;
use softswap_engine::base::stats::Counter;
use softswap_engine::store::io::poll::mode::{Mode, Sleep};
use std::time::Duration;

fn send_request(world: &World, request: &str) -> Answer {
    let line = format!("softswap 1 {request}");
    let text = reply_to(line.as_bytes(), |request| {
        carry_out(&world.engine, Duration::from_secs(3), request)
    });
    assert!(text.len() <= MAX_ANSWER_BYTES);
    Answer::parse(text.as_bytes())
}

const INITIAL: &str = "bounce.peak 0\ncodec lz4\nio.poll auto\nio.poll_sleep auto\nmemory 16M\n\
     pool.limit 6684672B\n";

fn ok(body: &str) -> Answer {
    Answer::Ok(body.to_string())
}

#[test]
fn settings_round_trip_and_take_effect() {
    let world = World::new(&Setup::default());
    assert_eq!(send_request(&world, "get"), ok(INITIAL));
    assert_eq!(send_request(&world, "set io.poll hybrid"), ok("io.poll hybrid\n"));
    assert_eq!(send_request(&world, "set io.poll_sleep 1500us"), ok("io.poll_sleep 1500us\n"));
    assert_eq!(send_request(&world, "get io.poll"), ok("io.poll hybrid\n"));
    let knobs = world.engine.knobs().next().unwrap();
    assert_eq!((knobs.mode(), knobs.sleep()), (Mode::Hybrid, Sleep::Fixed(1_500_000)));
    for (requested, shown) in [("zstd", "zstd"), ("zstd:3", "zstd:3"), ("none", "none")] {
        assert_eq!(
            send_request(&world, &format!("set codec {requested}")),
            ok(&format!("codec {shown}\n"))
        );
        assert_eq!(world.engine.codec().get().to_string(), shown);
    }
    assert_eq!(send_request(&world, "set io.poll_sleep auto"), ok("io.poll_sleep auto\n"));
    assert_eq!(knobs.sleep(), Sleep::Adaptive);
}

#[test]
fn invalid_settings_are_reported_and_ignored() {
    let world = World::new(&Setup::default());
    for (request, parts) in [
        ("get io.pol", ["\"io.pol\"", "codec, io.poll, io.poll_sleep, memory and pool.limit"]),
        ("set io.pol poll", ["\"io.pol\"", "codec, io.poll, io.poll_sleep, memory and pool.limit"]),
        ("set codec snappy", ["codec: \"snappy\"", "lz4, zstd, zstd:LEVEL"]),
        ("set codec zstd:99", ["codec: \"zstd:99\"", "from -5 to 9"]),
        ("set codec", ["codec: \"\"", "lz4, zstd, zstd:LEVEL"]),
        ("set io.poll banana", ["io.poll: \"banana\"", "interrupt, poll, hybrid or auto"]),
        ("set io.poll POLL", ["io.poll: \"POLL\"", "interrupt, poll, hybrid or auto"]),
        ("set io.poll", ["io.poll: \"\"", "interrupt, poll, hybrid or auto"]),
        ("set io.poll_sleep 2s", ["io.poll_sleep: \"2s\"", "at most 100ms"]),
        ("set io.poll_sleep -1us", ["io.poll_sleep: \"-1us\"", "at most 100ms"]),
    ] {
        let Answer::Error(why) = send_request(&world, request) else {
            panic!("{request} was accepted")
        };
        for part in parts {
            assert!(why.contains(part), "{part:?} is missing in: {why}");
        }
    }
    assert_eq!(send_request(&world, "get"), ok(INITIAL));
}

#[test]
fn stat_returns_uptime_settings_and_counters() {
    let world = World::new(&Setup::default());
    let memory = world.map(300);
    assert!(memory.write(0, 1));
    world.evict(memory);
    let Answer::Ok(body) = send_request(&world, "stat") else { panic!("no answer") };
    let snapshot = Snapshot::parse(&body).unwrap();
    assert_eq!(snapshot.uptime, Duration::from_secs(3));
    let keys: Vec<_> = snapshot.settings.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys, LIVE_SETTINGS.map(|setting| setting.key));
    assert_eq!(snapshot.stats.get(Counter::BudgetBytes), 16 << 20);
    assert!(snapshot.stats.get(Counter::PagesOut) > 0);
    assert!(snapshot.stats.get(Counter::MappedPeakBytes) >= 300 * 4096);
}
