//! A program that only waits for pages is told so while it runs, unless it asked for quiet.

mod support;

use support::{Swapped, compiled};

const NOTE: &str = "the program has waited for pages";

fn told(options: &[&str], arguments: &[&str]) -> usize {
    let within = Swapped::within("16M");
    let swapped = options.iter().fold(within, |swapped, option| swapped.option(*option));
    let report = swapped.run(compiled("hog"), arguments);
    report.ended.expect_success("hog");
    report.ended.stderr.matches(NOTE).count()
}

#[test]
fn a_program_that_thrashes_is_told_so_once_and_only_then() {
    let thrashes = ["--mib", "128", "--seconds", "25"];
    std::thread::scope(|scope| {
        let loud = scope.spawn(|| told(&[], &thrashes));
        let quiet = scope.spawn(|| told(&["--quiet"], &thrashes));
        // What fits is not waited for.
        let fits = scope.spawn(|| told(&[], &["--mib", "4", "--seconds", "13"]));
        let of = |run: std::thread::ScopedJoinHandle<'_, usize>| run.join().expect("a run");
        assert_eq!((of(loud), of(quiet), of(fits)), (1, 0, 0));
    });
}
