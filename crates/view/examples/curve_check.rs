use softswap_view::curve::Curve;
use softswap_view::report::Report;
fn main() {
    let mut args = std::env::args().skip(1);
    let dir = args.next().unwrap();
    for name in args {
        let read = |share: u32| {
            let text = std::fs::read_to_string(format!("{dir}/{name}-{share}.json")).ok()?;
            Report::read(&text).ok()
        };
        let Some(base) = read(100) else { continue };
        let Some(curve) = Curve::of(&base) else {
            println!("{name}: no curve");
            continue;
        };
        println!("== {name}");
        for share in [75, 100, 150, 200] {
            let Some(real) = read(share) else { continue };
            let point = curve.at(f64::from(share) / 100.0);
            let w = |tier: &str| real.waited_ns(tier) as f64 / 1e9;
            let n = |tier: &str| real.faults_of(tier);
            println!(
                "{name:>20} {share:>3}: stall {:.2}/{:.2} = {:.2} known {} disk us {:.0} pool us {:.0}",
                point.stalled_ns / 1e9,
                real.stalled_ns as f64 / 1e9,
                point.stalled_ns / real.stalled_ns as f64,
                point.is_known,
                w("disk") * 1e6 / n("disk").max(1) as f64,
                w("pool") * 1e6 / n("pool").max(1) as f64
            );
        }
    }
}
