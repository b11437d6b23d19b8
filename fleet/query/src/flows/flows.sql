-- The packets of each conversation, summed up. The direction `forth` leads from the end whose address is the smaller one.
WITH
translated AS (
    SELECT DISTINCT flow, src, sport, dst, dport,
        flow_number(nat_src, nat_sport, nat_dst, nat_dport, protocol) AS nat_flow, nat_src, nat_sport, nat_dst, nat_dport
    FROM packets WHERE flow IS NOT NULL AND nat_src IS NOT NULL
),
-- Each side of a translation, and the other side.
sides AS (
    SELECT flow, coalesce(src < dst OR (src = dst AND sport <= dport), true) AS forth,
        nat_flow, nat_src, nat_sport, nat_dst, nat_dport
    FROM translated
    UNION ALL
    SELECT nat_flow, coalesce(nat_src < nat_dst OR (nat_src = nat_dst AND nat_sport <= nat_dport), true),
        flow, src, sport, dst, dport
    FROM translated
),
-- Sides with one other side only, as packets have it that are sent `forth`.
single AS (
    SELECT flow, min(nat_flow) AS nat_flow, arrow_cast(min(nat_src), 'Utf8') AS nat_src, min(nat_sport) AS nat_sport,
        arrow_cast(min(nat_dst), 'Utf8') AS nat_dst, min(nat_dport) AS nat_dport
    FROM (
        SELECT DISTINCT flow, nat_flow,
            CASE WHEN forth THEN nat_src ELSE nat_dst END AS nat_src,
            CASE WHEN forth THEN nat_sport ELSE nat_dport END AS nat_sport,
            CASE WHEN forth THEN nat_dst ELSE nat_src END AS nat_dst,
            CASE WHEN forth THEN nat_dport ELSE nat_sport END AS nat_dport
        FROM sides
    )
    GROUP BY flow HAVING count(*) = 1
),
pairs AS (
    SELECT * FROM single WHERE nat_flow IN (SELECT flow FROM single)
),
-- Texts have a type whose memory DataFusion counts exactly: views of texts share buffers, and count them several times.
of_flows AS (
    SELECT time_ns, protocol, sport, dport, flow, nat_sport, nat_dport, length, segments, tcp_flags,
        retransmission, reset, rtt_us,
        coalesce(src < dst OR (src = dst AND sport <= dport), true) AS forth,
        arrow_cast(capture, 'Utf8') AS capture, arrow_cast(host, 'Utf8') AS host,
        arrow_cast(interface, 'Utf8') AS interface, arrow_cast(hook, 'Utf8') AS hook,
        arrow_cast(src, 'Utf8') AS src, arrow_cast(dst, 'Utf8') AS dst,
        arrow_cast(nat_src, 'Utf8') AS nat_src, arrow_cast(nat_dst, 'Utf8') AS nat_dst,
        arrow_cast(dns_name, 'Utf8') AS dns_name, arrow_cast(tls_server_name, 'Utf8') AS tls_server_name,
        arrow_cast(ja4, 'Utf8') AS ja4, arrow_cast(http_host, 'Utf8') AS http_host, arrow_cast(comm, 'Utf8') AS comm,
        arrow_cast(container, 'Utf8') AS container, arrow_cast(cause, 'Utf8') AS cause
    FROM packets WHERE flow IS NOT NULL
),
-- A host that does not translate addresses sees packets of one side: the other side is known if the pair is certain.
completed AS (
    SELECT p.time_ns, p.capture, p.host, p.interface, p.hook, p.protocol, p.src, p.sport, p.dst, p.dport, p.flow, p.forth,
        coalesce(p.nat_src, CASE WHEN forth THEN pairs.nat_src ELSE pairs.nat_dst END) AS nat_src,
        coalesce(p.nat_sport, CASE WHEN forth THEN pairs.nat_sport ELSE pairs.nat_dport END) AS nat_sport,
        coalesce(p.nat_dst, CASE WHEN forth THEN pairs.nat_dst ELSE pairs.nat_src END) AS nat_dst,
        coalesce(p.nat_dport, CASE WHEN forth THEN pairs.nat_dport ELSE pairs.nat_sport END) AS nat_dport,
        p.length, p.segments, p.tcp_flags, p.retransmission, p.reset, p.rtt_us, p.dns_name, p.tls_server_name, p.ja4, p.http_host,
        p.comm, p.container, p.cause
    FROM pairs RIGHT JOIN of_flows p ON pairs.flow = CASE WHEN p.nat_src IS NULL THEN p.flow END
),
-- Sums of each direction at each place.
directions AS (
    SELECT capture, host, interface, hook, protocol, src, sport, dst, dport, flow, forth,
        nat_src, nat_sport, nat_dst, nat_dport,
        min(time_ns) AS first, max(time_ns) AS last,
        min(time_ns) FILTER (WHERE (tcp_flags & 18) = 2) AS opened,
        count(*) FILTER (WHERE (tcp_flags & 18) = 2 AND NOT retransmission) AS connections,
        count(*) AS packets, sum(length) AS bytes, sum(coalesce(segments, 1)) AS segments,
        count(*) FILTER (WHERE retransmission) AS retransmissions, bool_or(reset) AS reset, min(rtt_us) AS rtt_us,
        max(dns_name) AS dns_name, max(tls_server_name) AS tls_server_name, max(ja4) AS ja4, max(http_host) AS http_host,
        max(comm) AS comm, max(container) AS container, max(cause) AS cause
    FROM completed
    GROUP BY capture, host, interface, hook, protocol, src, sport, dst, dport, flow, forth,
        nat_src, nat_sport, nat_dst, nat_dport
),
numbered AS (
    SELECT *, flow_number(nat_src, nat_sport, nat_dst, nat_dport, protocol) AS nat_flow FROM directions
),
sided AS (
    SELECT *, coalesce({is_second}, false) AS is_second FROM numbered
),
-- Both sides of a translation in the same order, on whichever of them the packets were seen.
ordered AS (
    SELECT *,
        CASE WHEN is_second THEN nat_flow ELSE flow END AS flow1, CASE WHEN is_second THEN flow ELSE nat_flow END AS flow2,
        CASE WHEN is_second THEN nat_src ELSE src END AS src1, CASE WHEN is_second THEN src ELSE nat_src END AS src2,
        CASE WHEN is_second THEN nat_sport ELSE sport END AS sport1,
        CASE WHEN is_second THEN sport ELSE nat_sport END AS sport2,
        CASE WHEN is_second THEN nat_dst ELSE dst END AS dst1, CASE WHEN is_second THEN dst ELSE nat_dst END AS dst2,
        CASE WHEN is_second THEN nat_dport ELSE dport END AS dport1,
        CASE WHEN is_second THEN dport ELSE nat_dport END AS dport2
    FROM sided
),
directed AS (
    SELECT *, coalesce(src1 < dst1 OR (src1 = dst1 AND sport1 <= dport1), true) AS is_forth FROM ordered
),
-- Both directions with the same source.
turned AS (
    SELECT capture, host, interface, hook, protocol, flow1, flow2, is_second, is_forth,
        CASE WHEN is_forth THEN src1 ELSE dst1 END AS src1, CASE WHEN is_forth THEN sport1 ELSE dport1 END AS sport1,
        CASE WHEN is_forth THEN dst1 ELSE src1 END AS dst1, CASE WHEN is_forth THEN dport1 ELSE sport1 END AS dport1,
        CASE WHEN is_forth THEN src2 ELSE dst2 END AS src2, CASE WHEN is_forth THEN sport2 ELSE dport2 END AS sport2,
        CASE WHEN is_forth THEN dst2 ELSE src2 END AS dst2, CASE WHEN is_forth THEN dport2 ELSE sport2 END AS dport2,
        -- A connection begins with its SYN, even if a host that saw only answers has a slow clock.
        coalesce(opened - 4611686018427387904, first) AS begun,
        first, last, connections, packets, bytes, segments, retransmissions, reset, rtt_us, dns_name, tls_server_name, ja4, http_host, comm,
        container, cause
    FROM directed
),
-- Of each direction, the largest numbers of a place.
grouped AS (
    SELECT {place} protocol, flow1, flow2, src1, sport1, dst1, dport1, src2, sport2, dst2, dport2,
        {seen_at}
        min(first) AS first, max(last) AS last,
        min(begun) FILTER (WHERE is_forth) AS begun_forth, min(begun) FILTER (WHERE NOT is_forth) AS begun_back,
        min(begun) FILTER (WHERE NOT is_second) AS begun1, min(begun) FILTER (WHERE is_second) AS begun2,
        coalesce(max(packets) FILTER (WHERE is_forth), 0) AS packets_forth,
        coalesce(max(packets) FILTER (WHERE NOT is_forth), 0) AS packets_back,
        coalesce(max(bytes) FILTER (WHERE is_forth), 0) AS bytes_forth,
        coalesce(max(bytes) FILTER (WHERE NOT is_forth), 0) AS bytes_back,
        coalesce(max(segments) FILTER (WHERE is_forth), 0) AS segments_forth,
        coalesce(max(segments) FILTER (WHERE NOT is_forth), 0) AS segments_back,
        coalesce(max(retransmissions) FILTER (WHERE is_forth), 0) AS retransmissions_forth,
        coalesce(max(retransmissions) FILTER (WHERE NOT is_forth), 0) AS retransmissions_back,
        max(connections) AS connections, bool_or(reset) AS reset,
        max(rtt_us) FILTER (WHERE is_forth) AS rtt_forth, max(rtt_us) FILTER (WHERE NOT is_forth) AS rtt_back,
        max(dns_name) AS dns_name, max(tls_server_name) AS tls_server_name, max(ja4) AS ja4, max(http_host) AS http_host,
        max(cause) AS cause,
        names(array_agg(comm) FILTER (WHERE comm IS NOT NULL)) AS comm,
        names(array_agg(container) FILTER (WHERE container IS NOT NULL)) AS container
    FROM turned
    GROUP BY {place} protocol, flow1, flow2, src1, sport1, dst1, dport1, src2, sport2, dst2, dport2
),
begun AS (
    SELECT *, coalesce(begun_forth <= begun_back, begun_back IS NULL) AS is_forth,
        coalesce(begun1 <= begun2, begun2 IS NULL) AS is_first
    FROM grouped
),
-- The side that saw the first packet, and the other one.
shown AS (
    SELECT *, CASE WHEN is_first THEN flow1 ELSE flow2 END AS flow, CASE WHEN is_first THEN flow2 ELSE flow1 END AS nat_flow,
        CASE WHEN is_first THEN src1 ELSE src2 END AS low, CASE WHEN is_first THEN src2 ELSE src1 END AS nat_low,
        CASE WHEN is_first THEN sport1 ELSE sport2 END AS low_port,
        CASE WHEN is_first THEN sport2 ELSE sport1 END AS nat_low_port,
        CASE WHEN is_first THEN dst1 ELSE dst2 END AS high, CASE WHEN is_first THEN dst2 ELSE dst1 END AS nat_high,
        CASE WHEN is_first THEN dport1 ELSE dport2 END AS high_port,
        CASE WHEN is_first THEN dport2 ELSE dport1 END AS nat_high_port
    FROM begun
)
-- The columns that are not computed are parts of the values of all groups, which a row would keep in memory: they are copied.
SELECT arrow_cast(first / 1000, 'Timestamp(Microsecond, Some("UTC"))') AS first,
    arrow_cast(last / 1000, 'Timestamp(Microsecond, Some("UTC"))') AS last,
    CASE WHEN is_forth THEN low ELSE high END AS src, CASE WHEN is_forth THEN low_port ELSE high_port END AS sport,
    CASE WHEN is_forth THEN high ELSE low END AS dst, CASE WHEN is_forth THEN high_port ELSE low_port END AS dport,
    protocol, packets_forth + packets_back AS packets, bytes_forth + bytes_back AS bytes,
    CASE WHEN is_forth THEN packets_back ELSE packets_forth END AS packets_back,
    CASE WHEN is_forth THEN bytes_back ELSE bytes_forth END AS bytes_back,
    segments_forth + segments_back AS segments, copied(connections) AS connections, retransmissions_forth + retransmissions_back AS retransmissions, reset,
    -- The round trip to a host is in the packets that it sends.
    CASE WHEN is_forth THEN rtt_back ELSE rtt_forth END AS rtt_us,
    CASE WHEN is_forth THEN rtt_forth ELSE rtt_back END AS rtt_back_us,
    copied(cause) AS cause,
    CASE WHEN is_forth THEN nat_low ELSE nat_high END AS nat_src,
    CASE WHEN is_forth THEN nat_low_port ELSE nat_high_port END AS nat_sport,
    CASE WHEN is_forth THEN nat_high ELSE nat_low END AS nat_dst,
    CASE WHEN is_forth THEN nat_high_port ELSE nat_low_port END AS nat_dport,
    copied(dns_name) AS dns_name, copied(tls_server_name) AS tls_server_name, copied(ja4) AS ja4,
    copied(http_host) AS http_host, copied(comm) AS comm, copied(container) AS container, {columns} flow, nat_flow
FROM shown
