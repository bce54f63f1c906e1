use super::*;

const WHOLE: Content = Content { lz4_bytes: 4096, zstd_bytes: 4096 };
const HALF: Content = Content { lz4_bytes: 2000, zstd_bytes: 1500 };

fn simulation(memory_pages: usize, without: &str) -> Simulation {
    Simulation::new(Setup {
        window_pages: 1 << 14,
        memory_bytes: memory_pages * PAGE_SIZE,
        costs: Costs::default(),
        without: without.parse().unwrap(),
        pool_percent: None,
    })
    .unwrap()
}

/// Touches `pages` pages once, then `touches` of them in a pseudo-random order.
fn skip_about(simulation: &mut Simulation, pages: u64, touches: u64, content: Content) -> Figures {
    (0..pages).for_each(|page| simulation.touch(page, true, Some(content)));
    let mut at = 1_u64;
    for _ in 0..touches {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        simulation.touch((at >> 33) % pages, false, None);
    }
    simulation.figures()
}

#[test]
fn fitting_memory_has_only_first_touches() {
    let figures = skip_about(&mut simulation(2000, ""), 1000, 10_000, WHOLE);
    let expected = Figures { zero_faults: 1000, stalled_ns: 7_700_000, ..Figures::default() };
    assert_eq!(figures, expected);
}

#[test]
fn simulation_is_deterministic() {
    let run = || skip_about(&mut simulation(2000, ""), 5000, 50_000, HALF);
    let figures = run();
    assert_eq!(figures, run());
    assert!(figures.pool_faults > 1000 && figures.disk_faults > 1000, "{figures:?}");
}

#[test]
fn compressible_pages_avoid_disk() {
    let compressed = skip_about(&mut simulation(4000, ""), 5000, 200_000, HALF);
    let whole = skip_about(&mut simulation(4000, ""), 5000, 200_000, WHOLE);
    assert!(whole.pool_faults == 0 && whole.disk_faults > 5000, "{whole:?}");
    // Some pages are on disk, because the partition probes smaller pools.
    assert!(2 * compressed.disk_faults < whole.disk_faults, "{compressed:?} {whole:?}");
    assert!(whole.stalled_ns > 2 * compressed.stalled_ns, "{compressed:?} {whole:?}");
}

#[test]
fn each_mechanism_can_be_disabled() {
    for mechanism in Mechanism::ALL {
        let mut simulation = simulation(2000, mechanism.name());
        let figures = skip_about(&mut simulation, 5000, 5000, HALF);
        assert!(figures.zero_faults == 5000 && figures.pages_out > 0, "{mechanism:?}");
    }
    let with = skip_about(&mut simulation(2000, ""), 5000, 50_000, WHOLE);
    let without = skip_about(&mut simulation(2000, "swap_cache"), 5000, 50_000, WHOLE);
    assert!(without.pages_written > with.pages_written, "{with:?} {without:?}");
}

#[test]
fn unmapped_pages_are_vacant() {
    let mut simulation = simulation(2000, "");
    skip_about(&mut simulation, 5000, 20_000, HALF);
    simulation.gone(0..5000);
    assert_eq!((simulation.resident, simulation.slots.len(), simulation.pool.objects()), (0, 0, 0));
    let copies = &simulation.policies.stored_copies;
    assert_eq!((copies.count(), copies.pooled()), (0, 0));
    simulation.forget_figures();
    assert_eq!(skip_about(&mut simulation, 1000, 0, HALF).zero_faults, 1000);
}

#[test]
fn stream_is_read_ahead() {
    let round = |simulation: &mut Simulation| {
        (0..5000).for_each(|page| simulation.touch(page, false, None));
    };
    let mut figures = ["", "readahead,fault_readahead"].map(|without| {
        let mut simulation = simulation(1000, without);
        (0..5000).for_each(|page| simulation.touch(page, true, Some(WHOLE)));
        simulation.forget_figures();
        round(&mut simulation);
        simulation.figures()
    });
    let [with, without] = &mut figures;
    assert!(with.disk_faults * 5 < without.disk_faults, "{with:?} {without:?}");
    assert!(with.pages_ahead > 2000 && without.pages_ahead == 0);
}
