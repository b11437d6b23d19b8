# Removes the output of passed tests from that of `cargo test -- --show-output`, except the reasons of skipped tests.

/^successes:$/ { hidden = 1 }
/^(failures:|test result: )/ { hidden = 0 }
/^---- .* stdout ----$/ { test = $2 }
hidden && /^SKIPPED: / { print "test " test ": " $0; fflush() }
!hidden { print; fflush() }
