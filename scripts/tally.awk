# Counts what `cargo test -- --show-output` says, over all the test programs it ran.

# A test program starts, and is expected to give its result.
/^ +(Running|Doc-tests) / { started++ }

/^test result: / {
    finished++
    for (i = 4; i < NF; i++) {
        if ($(i + 1) == "passed;") passed += $i
        if ($(i + 1) == "failed;") failed += $i
        if ($(i + 1) == "ignored;") skipped += $i
    }
    section = test = ""
    split("", told)
}

/^(successes|failures):$/ { section = $1 }

# The output of one test.
/^---- .* stdout ----$/ { test = $2 }

# Within a test's output, or past cargo's capture: then with the test's name. It counts once, however often it is said.
/^SKIPPED: / && section != "failures:" {
    name = section == "" ? $2 : test ":"
    if (!(name in told)) {
        told[name] = 1
        skipped++
        passed--
    }
}

END {
    failed += started - finished
    if (status != 0 && failed == 0) failed = 1
    if (passed + failed + skipped == 0) {
        print "No test was run." > "/dev/stderr"
        failed = 1
    }
    printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
    exit failed > 0
}
